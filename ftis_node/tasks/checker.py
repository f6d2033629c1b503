"""Asks the worker process whether an answer is right, and survives whatever happens there."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import time
import weakref

from ftis_node.errors import TaskError
from ftis_node.tasks.checker_worker import CHECK_SECONDS, FAILED, PRELOAD_GYM, PREPARE_SECONDS, READY, RIGHT
from ftis_node.tasks.checks import GymCheck, MathCheck

log = logging.getLogger(__name__)

START_SECONDS = 120.0
GRACE_SECONDS = 5.0


class AnswerChecker:
    """One worker process, started when it is first needed; it ends with this object or this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.failures = 0

    def is_right(self, check: MathCheck | GymCheck) -> bool:
        """An answer that can't be checked within ``CHECK_SECONDS`` is wrong. Raises TaskError without a worker."""
        process = self._process or self._start(gym=isinstance(check, GymCheck))
        assert process.stdin is not None
        try:
            process.stdin.write(check.model_dump_json().encode() + b"\n")
            verdict = _read_line(process, PREPARE_SECONDS + CHECK_SECONDS + GRACE_SECONDS)
        except BrokenPipeError:
            verdict = b""
        if verdict in (b"", FAILED):
            self.failures += 1
            log.info("an answer could not be checked within %.0f s and counts as wrong", CHECK_SECONDS)
            log.debug("it was %.200r", check.answer)
        if verdict == b"":  # the keeper itself is gone or stuck
            self.close()
        return verdict == RIGHT

    def close(self) -> None:
        """End the worker; the next check starts another."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _start(self, *, gym: bool) -> subprocess.Popen[bytes]:
        # One hash seed for all: sets have the same order everywhere.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "ftis_node.tasks.checker_worker", *([PRELOAD_GYM] if gym else [])]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0, start_new_session=True
        )
        weakref.finalize(self, _end, process)
        if _read_line(process, START_SECONDS) != READY:
            _end(process)
            raise TaskError(f"the process that checks answers does not start (exit code {process.returncode})")
        self._process = process
        return process


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """One line, or nothing when it doesn't come in time or never will."""
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        if not select.select([process.stdout], [], [], left)[0]:
            return b""
        part = os.read(process.stdout.fileno(), 4096)
        if not part:
            return b""
        line += part
    return line


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # With its group: the child that does the work may be busy.
        os.killpg(process.pid, 9)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
