"""SIGTERM as an exception in the learner's main thread."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_SECONDS = 0.05


class StopRequested(BaseException):
    """SIGTERM: unwinds to ``main`` from wherever the work is, except out of a protected block."""


class StopSignal:
    """Turns SIGTERM into one StopRequested, but lets a protected block (a checkpoint write) finish first."""

    def __init__(self) -> None:
        self._protected = 0
        self._requested = False
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGALRM, self._raise)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the network half's to handle
        sys.unraisablehook = self._on_swallowed

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        already, self._requested = self._requested, True
        if not already:
            self._raise(number, frame)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._protected:
            raise StopRequested

    def _on_swallowed(self, unraisable: UnraisableHookArgs) -> None:
        """A finaliser, or a callback of the import system, is where Python can't pass an exception on: try later."""
        if issubclass(unraisable.exc_type, StopRequested):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            sys.__unraisablehook__(unraisable)

    @contextmanager
    def protected(self) -> Iterator[None]:
        self._protected += 1
        try:
            yield
        finally:
            self._protected -= 1
        if self._requested and not self._protected:
            raise StopRequested
