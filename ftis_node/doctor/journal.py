"""Running one check after the other, each within its time, and keeping what was found."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ftis_node.doctor.findings import Check, Finding, Level, Verdict, failure
from ftis_node.errors import FtisError

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
REMIND_SECONDS = 30.0
CANCEL_SECONDS = 2.0


class Journal:
    """``report`` gets every finding as it is made, ``say`` a line about what is being waited for."""

    def __init__(self, report: Callable[[Finding], None], say: Callable[[str], None]) -> None:
        self._report = report
        self._say = say
        self.findings: list[Finding] = []

    @property
    def failed(self) -> bool:
        return any(finding.level is Level.FAILURE for finding in self.findings)

    async def run(self, check: Check, work: Awaitable[Verdict]) -> None:
        """Wait for the verdict, at most as long as the check may take. An error of the check itself is a failure."""
        started = time.monotonic()
        verdict = await self._verdict(check, asyncio.ensure_future(work), started)
        self.note(check, verdict, time.monotonic() - started)

    def note(self, check: Check, verdict: Verdict, seconds: float = 0.0) -> None:
        finding = Finding(check.name, verdict.level, verdict.found, verdict.advice, round(seconds, 3))
        self.findings.append(finding)
        self._report(finding)

    async def _verdict(self, check: Check, task: asyncio.Future[Verdict], started: float) -> Verdict:
        try:
            await self._wait(check, task, started)
            if not task.done():
                return failure(
                    f"took more than {check.seconds:.0f} s: waiting for {check.waits_for}",
                    "see what this machine is busy with, or whether a disk or the network hangs",
                )
            error = task.exception()
        finally:
            if task.cancel():
                await asyncio.wait({task}, timeout=CANCEL_SECONDS)
        if error is None:
            return task.result()
        if isinstance(error, FtisError):
            return failure(str(error))
        first_line = (str(error).strip().splitlines() or [""])[0][:300]
        return failure(f"could not be checked: {type(error).__name__}: {first_line}")

    async def _wait(self, check: Check, task: asyncio.Future[Verdict], started: float) -> None:
        wait = min(PATIENCE_SECONDS, check.seconds)
        while True:
            await asyncio.wait({task}, timeout=wait)
            elapsed = time.monotonic() - started
            if task.done() or elapsed >= check.seconds:
                return
            self._say(f"{check.name}: waiting for {check.waits_for} ({elapsed:.0f} s, at most {check.seconds:.0f} s)")
            wait = min(REMIND_SECONDS, check.seconds - elapsed)


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run what may block in a thread that nobody waits for at the end: a file system that hangs can't be cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None is a result where T is None

    def work() -> None:
        try:
            result, error = function(*arguments), None
        except Exception as caught:  # noqa: BLE001 - it is raised again where the result is awaited
            result, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="doctor").start()
    return await done
