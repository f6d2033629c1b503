"""``ftis-node simulate``: a study's parties in lockstep, seed after seed, or several seeds at the same time."""

from __future__ import annotations

import functools
import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ftis_node.allocator import tune_malloc
from ftis_node.errors import ConfigError, FtisError
from ftis_node.simulation.specification import SimulationSpec, read_specification

EXIT_STOPPED = 130
POLL_SECONDS = 0.5


Tell = Callable[[int, int], None]
"""A seed, and how many of its rounds are done."""


class SimulationError(FtisError):
    """A seed that ended otherwise than it should."""


@dataclass(frozen=True)
class SimulateOptions:
    """The command line of ``simulate``."""

    study: Path
    seeds: tuple[int, ...]
    output: Path
    rounds: int | None
    jobs: int


def parse_seeds(text: str) -> tuple[int, ...]:
    """``0,1,5-8`` as numbers. Raises ConfigError."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > 9:
            raise ConfigError(f"--seeds {text}: must be whole numbers and ranges of them, for example 0,1,5-8")
        low, high = int(first), int(last or first)
        if high < low or high - low >= 10_000:
            raise ConfigError(f"--seeds {text}: {part.strip()} is no range of at most 10000 seeds")
        seeds += range(low, high + 1)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text}: a seed is there twice")
    return tuple(seeds)


class StopRequest:
    """Ctrl-C or SIGTERM: the first asks for a stop at the end of the round, a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_simulate(options: SimulateOptions) -> int:
    """Returns the exit code. Raises FtisError on a specification that can't be used, before anything is simulated."""
    spec = read_specification(options.study, rounds=options.rounds)
    console = Console(stderr=True)
    stop = StopRequest()
    jobs = min(options.jobs, len(options.seeds))
    with stop.installed(), _progress(console) as bar:
        shown = {seed: bar.add_task(f"{spec.name}, seed {seed}", total=spec.rounds) for seed in options.seeds}
        if jobs == 1:
            finished = _one_after_the_other(spec, options, stop, lambda seed, done: _show(bar, shown[seed], done))
        else:
            finished = _side_by_side(spec, options, jobs, stop, lambda seed, done: _show(bar, shown[seed], done))
    if not finished:
        console.print(f"Stopped. The same command goes on from the checkpoints in {options.output}.", highlight=False)
        return EXIT_STOPPED
    console.print(f"{len(options.seeds)} result files in {options.output}", highlight=False)
    return 0


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
        TimeElapsedColumn(), TimeRemainingColumn(), console=console,
    )  # fmt: skip


def _show(bar: Progress, task: TaskID, done: int) -> None:
    bar.update(task, completed=done)


def _one_after_the_other(spec: SimulationSpec, options: SimulateOptions, stop: StopRequest, tell: Tell) -> bool:
    tune_malloc()
    from ftis_node.simulation.runner import prepare, simulate  # imports torch, which must come after tune_malloc

    study = prepare(spec)
    for seed in options.seeds:
        on_round = functools.partial(tell, seed)
        if stop() or simulate(study, seed, options.output, on_round=on_round, stop=stop) is None:
            return False
    return True


# --- several processes ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Message:
    """From a worker: so many rounds of a seed are done, or why it ends."""

    seed: int
    done: int = 0
    error: str | None = None
    exit_code: int = 1


def _side_by_side(spec: SimulationSpec, options: SimulateOptions, jobs: int, stop: StopRequest, tell: Tell) -> bool:
    """Seeds dealt out to processes; a seed's numbers don't depend on which one it is in."""
    context = multiprocessing.get_context("spawn")
    messages, stopping = context.Queue(), context.Event()
    workers: list[BaseProcess] = []
    try:
        for first in range(jobs):
            arguments = (spec.model_dump_json(), options.seeds[first::jobs], options.output, messages, stopping)
            workers.append(context.Process(target=_work, args=arguments, daemon=True))
            workers[-1].start()
        error = _attend(workers, messages, stopping, stop, tell)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            worker.join()
    if error is not None:
        raise error
    return not stop.asked and all(worker.exitcode == 0 for worker in workers)


def _attend(
    workers: Sequence[BaseProcess], messages: Any, stopping: Any, stop: StopRequest, tell: Tell
) -> SimulationError | None:
    """Until all workers have ended; returns the first error. After one the others stop at the end of their round."""
    error: SimulationError | None = None
    while True:
        alive = any(worker.is_alive() for worker in workers)
        if stop.asked or error is not None:
            stopping.set()
        try:
            message = messages.get(timeout=POLL_SECONDS if alive else 0.01)
        except queue.Empty:
            if alive:
                continue
            dead = next((w.exitcode for w in workers if w.exitcode not in (0, EXIT_STOPPED)), None)
            if error is None and dead is not None:
                error = SimulationError(f"a process of the simulation ended with code {dead}; see above")
            return error
        if message.error is None:
            tell(message.seed, message.done)
        elif error is None:
            error = SimulationError(message.error)
            error.exit_code = message.exit_code


def _work(spec_json: str, seeds: Sequence[int], output: Path, messages: Any, stopping: Any) -> None:
    """A worker process. Ctrl-C is its parent's to handle; without the parent it stops at the end of the round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tune_malloc()
    from ftis_node.simulation.runner import prepare, simulate

    parent = multiprocessing.parent_process()
    assert parent is not None

    def must_stop() -> bool:
        return bool(stopping.is_set()) or not parent.is_alive()

    seed = seeds[0]
    try:
        study = prepare(SimulationSpec.model_validate_json(spec_json))
        for seed in seeds:
            on_round = functools.partial(_report, messages, seed)
            if must_stop() or simulate(study, seed, output, on_round=on_round, stop=must_stop) is None:
                raise SystemExit(EXIT_STOPPED)
    except FtisError as error:
        messages.put(_Message(seed, error=f"seed {seed}: {error}", exit_code=error.exit_code))


def _report(messages: Any, seed: int, done: int) -> None:
    messages.put(_Message(seed, done))
