"""Keeping the learner process alive beside the network half.

The learner is started with ``exec`` and never forked, so that it holds none of gRPC's threads or
sockets. Its standard input is its lifeline: the configuration comes through it, and when it closes,
because the network half ended in whatever way, the learner ends too.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ftis_node.config import NodeConfig

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0
GOOD_RUN_SECONDS = 600.0
STOP_SECONDS = 30.0
EXIT_FINISHED = 0
EXIT_UNUSABLE = 2

ReportLearner = Callable[[str], Awaitable[None]]


class LearnerProcess:
    """Starts the learner, restarts it with backoff when it dies, stops it in order."""

    def __init__(self, home: Path, config: NodeConfig, log_level: str, report: ReportLearner) -> None:
        self._home = home
        self._log_level = log_level
        self._config = config
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def run(self) -> int:
        """Until the learner has finished its rounds (0) or can't work at all (2); else for ever."""
        backoff = FIRST_BACKOFF_SECONDS
        killed = False
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run_once(after_kill=killed)
            killed = code == -signal.SIGKILL
            if self._stopping or code in (EXIT_FINISHED, EXIT_UNUSABLE):
                await self._report("finished" if code == EXIT_FINISHED else f"stopped with exit code {code}")
                return code
            if loop.time() - started > GOOD_RUN_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            cause = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            log.error("the learner died (%s); restarting it from its last checkpoint in %.0f s", cause, backoff)
            await self._report(f"died ({cause}), restarting in {backoff:.0f} s")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _run_once(self, *, after_kill: bool) -> int:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ftis_node.commands.learner", str(self._home), self._log_level,
            *(["after-kill"] if after_kill else []),
            stdin=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        await self._report("running")
        try:
            self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            log.warning("the learner ended before it read its configuration")
        return await self._process.wait()

    async def stop(self) -> None:
        """Ask it to finish its current write and end; kill it when it doesn't within the limit."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            log.error("the learner did not end within %.0f s and is killed", STOP_SECONDS)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """At once; the store and the checkpoints stand it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
