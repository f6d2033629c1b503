"""What the status page reads: in one worker thread, one thing at a time, and seldom, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from ftis_node.clock import now_ms
from ftis_node.errors import FtisError, StoreError
from ftis_node.status.figures import Figures, LearnerPid, look
from ftis_node.status.history import ROUNDS, History, TrafficSample, history_of
from ftis_node.store.reader import StoreReader

T = TypeVar("T")

FIGURES_SECONDS = 1.0
HISTORY_SECONDS = 5.0
LONGEST_SECONDS = 8.0
SAMPLE_SECONDS = 10.0
SAMPLES = 361
"""An hour of traffic."""


class Cached(Generic[T]):
    """The result of a slow function, at most ``seconds`` old, by one call at a time.

    Raises what the function raises, and StoreError to whoever would wait for longer than ``LONGEST_SECONDS``.
    """

    def __init__(self, executor: ThreadPoolExecutor, function: Callable[[], T], seconds: float) -> None:
        self._executor = executor
        self._function = function
        self._seconds = seconds
        self._call: asyncio.Future[T] | None = None
        self._ended_at = 0.0

    async def __call__(self) -> T:
        call = self._call
        if call is None or (call.done() and time.monotonic() - self._ended_at >= self._seconds):
            call = asyncio.get_running_loop().run_in_executor(self._executor, self._function)
            call.add_done_callback(self._ended)
            self._call = call
        await asyncio.wait({call}, timeout=LONGEST_SECONDS)
        if not call.done():
            raise StoreError("the store takes long to answer; is the disk very busy?")
        return call.result()

    def _ended(self, call: asyncio.Future[T]) -> None:
        self._ended_at = time.monotonic()
        if not call.cancelled():
            call.exception()  # whoever asked may be gone: it is nobody's unhandled error


class Readings:
    """Of one home, for one event loop."""

    def __init__(self, home: Path, learner_pid: LearnerPid) -> None:
        self._home = home
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="status-page-store")
        self._traffic: deque[TrafficSample] = deque(maxlen=SAMPLES)
        self.figures: Cached[Figures] = Cached(self._executor, lambda: look(home, learner_pid), FIGURES_SECONDS)
        self._sample: Cached[None] = Cached(self._executor, self._take_sample, FIGURES_SECONDS)
        self.history: Cached[History] = Cached(self._executor, self._read_history, HISTORY_SECONDS)

    def _read_history(self) -> History:
        with StoreReader(self._home) as store:
            rounds = store.recent_rounds(ROUNDS)
        return history_of(rounds, list(self._traffic))

    def _take_sample(self) -> None:
        """In the worker thread, which alone touches the samples."""
        at_ms = now_ms()
        with StoreReader(self._home) as store:
            sums = store.network_sums(at_ms)
        self._traffic.append(TrafficSample(at_ms, sums.bytes_in or 0, sums.bytes_out or 0))

    async def sample_forever(self) -> None:
        """Note how much has been exchanged with peers, every ``SAMPLE_SECONDS``."""
        while True:
            with suppress(FtisError):  # whoever looks at the page is told; the next sample spans the gap
                await self._sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
