"""Keeping the learner process alive beside the network half.

The learner is started with ``exec`` and never forked, so that it holds none of gRPC's threads or
sockets. Its standard input is its lifeline: the configuration comes through it, and when it closes,
because the network half ended in whatever way, the learner ends too. Its standard output is for its last
words, why it ends.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ftis_node.config import NodeConfig
from ftis_node.log import LogSettings
from ftis_node.status.home_faults import disk_faults

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0
GOOD_RUN_SECONDS = 600.0
STOP_SECONDS = 30.0
LAST_WORDS = 200
"""Bytes of the reason that a learner gives before it ends, on its standard output."""
LAST_WORDS_SECONDS = 1.0
EXIT_FINISHED = 0
EXIT_UNUSABLE = 2
EXIT_STORAGE = 5
STORAGE_POLL_SECONDS = 1.0
STORAGE_BACKOFF_SECONDS = 15.0

Report = Callable[[str, str, float | None], Awaitable[None]]
"""``learner`` (how it is, and for how many seconds at most if that is known) or ``learner_died`` (of what)."""


class LearnerProcess:
    """Starts the learner, restarts it with backoff when it dies, stops it in order."""

    def __init__(self, home: Path, config: NodeConfig, log_settings: LogSettings, report: Report) -> None:
        self._home = home
        self._log_settings = log_settings
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
            code, why = await self._run_once(after_kill=killed)
            killed = code == -signal.SIGKILL
            if self._stopping or code in (EXIT_FINISHED, EXIT_UNUSABLE):
                end = "finished" if code == EXIT_FINISHED else f"stopped with exit code {code}{why}"
                await self._report("learner", end, None)
                return code
            if loop.time() - started > GOOD_RUN_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            cause = _cause(code) + why
            log.error("the learner died (%s); restarting it from its last checkpoint in %.0f s", cause, backoff)
            await self._report("learner_died", cause, None)
            await self._report("learner", f"died ({cause}), restarting", backoff)
            await asyncio.sleep(backoff)
            if code == EXIT_STORAGE:
                backoff = await self._until_writable(backoff)
            else:
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _until_writable(self, backoff: float) -> float:
        """Wait for as long as the disk is visibly full or read-only; returns the next backoff, which stays short."""
        while disk_faults(self._home):
            # The report waits for the disk as well.
            await self._report("learner", "waiting until the home can be written again", None)
            await asyncio.sleep(STORAGE_POLL_SECONDS)
        return min(2 * backoff, STORAGE_BACKOFF_SECONDS)

    async def _run_once(self, *, after_kill: bool) -> tuple[int, str]:
        """Its exit code, and what it said of the reason."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ftis_node.commands.learner", str(self._home),
            self._log_settings.level, self._log_settings.format,
            *(["after-kill"] if after_kill else []),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        await self._report("learner", "running", None)
        try:
            self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            log.warning("the learner ended before it read its configuration")
        code = await self._process.wait()
        try:
            words = await asyncio.wait_for(self._process.stdout.read(LAST_WORDS), LAST_WORDS_SECONDS)
        except TimeoutError:  # a process that it started holds the pipe open
            words = b""
        return code, f": {words.decode(errors='replace').strip()}" if words else ""

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


def _cause(code: int) -> str:
    if code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return "its home can't be written" if code == EXIT_STORAGE else f"exit code {code}"
