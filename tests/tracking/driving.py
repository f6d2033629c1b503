"""Trackers' processes as the network half starts them, and what they have written."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ftis_node.store.learner import LearnerStore
from ftis_node.store.reports import Totals
from tests.status.nodes import OWN_ID, report_of


@contextlib.contextmanager
def tracked(kind: str, target: str, home: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A tracker's process as the network half starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ftis_node.tracking", kind, target, str(home), "info", "text"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env},
    )  # fmt: skip
    try:
        with process:
            yield process
    finally:
        process.kill()


def add_rounds(home: Path, numbers: range) -> None:
    store = LearnerStore(home)
    for number in numbers:
        store.finish_round(number, [], report_of(number, Totals(), peers=False), [], forget_before_ms=0)
    store.close()


def until(condition: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def events(folder: Path, tag: str = "reward/own_reward") -> list[tuple[int, float]]:
    """Step and value as TensorBoard shows them."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)] if tag in reader.Tags()["scalars"] else []


def holds(folder: Path, rounds: int) -> bool:
    return folder.exists() and len(events(folder)) >= rounds


def tensorboard_folder(home: Path) -> Path:
    return home / "runs" / f"test-{OWN_ID.hex()[:12]}"
