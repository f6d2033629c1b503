"""The network half's store, on one thread beside the event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ftis_node.store.faults import storage_fault
from ftis_node.store.network import NetworkStore

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

RETRY_SECONDS = 1.0


def store_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")


class DatabaseThread:
    """Runs the store's functions one after the other.

    While the home can't be written (a full disk, a read-only one), whoever wants to write waits; readers don't. So
    nothing is lost, sessions are slowed down by their own bounds, and all goes on when the disk is well again.

    Several nodes in one process may share an ``executor`` (of one thread): many threads would only fight for the
    interpreter.
    """

    def __init__(self, store: NetworkStore, executor: ThreadPoolExecutor | None = None) -> None:
        self.store = store
        self._executor = executor or store_thread()
        self._waiting = 0
        self._gives_up = False

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        waits = False
        try:
            while True:
                call = functools.partial(function, *args, **kwargs)
                try:
                    return await loop.run_in_executor(self._executor, call)
                except Exception as error:
                    fault = storage_fault(error)
                    if fault is None or self._gives_up:
                        raise
                    if not self._waiting:
                        log.error("the home can't be written: %s; waiting until it can", fault)
                    self._waiting += not waits
                    waits = True
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            if waits:
                self._waiting -= 1
                if not self._waiting:
                    log.info("nothing waits for the home any more")

    def give_up_waiting(self) -> None:
        """From now on what can't be written is an error: the node stops, and the learner's outbox keeps the rest."""
        self._gives_up = True

    def close(self) -> None:
        self._executor.submit(self.store.close)
        self._executor.shutdown(wait=True)
