"""The other end of ``worker``: starting it, reading its verdicts, ending it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ValidationError

from ftis_node.doctor.findings import Verdict, failure, not_checked
from ftis_node.doctor.requests import VERDICT

LONGEST_LINE = 2**20
KEPT_OUTPUT = 4096
STOP_SECONDS = 1.0
LAST_WORDS_SECONDS = 10.0
"""From the end of its verdicts to its own: a traceback takes a moment."""


class WorkerProcess:
    """``kind`` is ``model`` or ``dht``. Used as a context manager; at its end the process is gone."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._said = b""
        self._ended: str | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ftis_node.doctor.worker", self._kind,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, limit=LONGEST_LINE,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._keep_the_last_words())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # its lifeline
        await self._end(STOP_SECONDS)

    async def ask(self, request: BaseModel) -> None:
        """Send one request; a process that has ended is noticed when its verdict is awaited."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.model_dump_json().encode() + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return

    async def verdict(self) -> Verdict:
        """The next one. Cancelled in the middle, it ends the process: the check took too long."""
        if self._ended is not None:
            return not_checked(self._ended)
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except asyncio.CancelledError:
            self._ended = "the check before it took too long"
            self._kill()
            raise
        try:
            return VERDICT.validate_json(line)
        except ValidationError:
            code = await self._end(LAST_WORDS_SECONDS)
            self._ended = "the process that checks it has ended"
            return failure(*_why(code, self._said))

    async def _keep_the_last_words(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(KEPT_OUTPUT):
            self._said = (self._said + piece)[-KEPT_OUTPUT:]

    def _kill(self) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with what it has started itself

    async def _end(self, patience: float) -> int:
        """Its exit code; it is killed if it doesn't end by itself."""
        try:
            await asyncio.wait_for(self._process.wait(), patience)
        except TimeoutError:
            self._kill()
        code = await self._process.wait()
        await asyncio.wait({self._listening}, timeout=1.0)
        self._listening.cancel()
        return code


def _why(code: int, said: bytes) -> tuple[str, str]:
    if code == -signal.SIGKILL:
        return (
            "the process was killed, as the kernel does when memory runs out",
            "take a smaller model, LoRA (--set lora.rank=16), or --set training.gradient_checkpointing=on",
        )
    last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
    cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the process that checks it ended ({cause}): {last}", "report this as a bug if the line doesn't help"
