"""A tracker's process beside the network half: started with exec, restarted with backoff, ended with the node."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from ftis_node.errors import ConfigError
from ftis_node.log import LogSettings

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 2.0
LONGEST_BACKOFF_SECONDS = 300.0
GOOD_RUN_SECONDS = 600.0
STOP_SECONDS = 3.0


def check_installed(kind: str) -> None:
    """``kind`` is the tracker, its package and its extra. Raises ConfigError."""
    if find_spec(kind) is None:
        raise ConfigError(
            f"tracking.{kind}: the package {kind} is not installed; install ftis-node[{kind}], or set it to off"
        )


class TrackerProcess:
    """Its standard input is its lifeline: it ends when the network half does, in whatever way."""

    def __init__(self, kind: str, target: str, home: Path, log_settings: LogSettings) -> None:
        self._kind = kind
        self._arguments = (kind, target, str(home), log_settings.level, log_settings.format)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> None:
        """Until it is stopped. A tracker that ends costs a line in the log and nothing else."""
        loop = asyncio.get_running_loop()
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            started = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ftis_node.tracking", *self._arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            code = await self._process.wait()
            self._end_group(self._process.pid)
            if self._stopping:
                return
            if loop.time() - started > GOOD_RUN_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            log.warning(
                "the %s tracker ended (exit code %d) and is started again in %.0f s; training goes on",
                self._kind, code, backoff,
            )  # fmt: skip
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def stop(self) -> None:
        """Let it write what it has; killed when it doesn't end within ``STOP_SECONDS``."""
        self._stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            log.warning("the %s tracker hangs and is killed", self._kind)
            process.kill()
            await process.wait()
        self._end_group(process.pid)

    def _end_group(self, group: int) -> None:
        """What the tracker's package has started goes with it."""
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:  # nothing is left of it
            return
