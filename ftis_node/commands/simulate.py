"""``ftis-node simulate``: a study's parties, seed after seed, or several seeds at the same time."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

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

from ftis_node.errors import ConfigError
from ftis_node.simulation.jobs import EXIT_STOPPED, Job, run_jobs
from ftis_node.simulation.specification import SimulationSpec, read_specification

MOST_SEEDS = 10_000


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
        if high < low or high - low >= MOST_SEEDS:
            raise ConfigError(f"--seeds {text}: {part.strip()} is no range of at most {MOST_SEEDS} seeds")
        seeds += range(low, high + 1)
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text}: a seed is there twice")
    return tuple(seeds)


def run_simulate(options: SimulateOptions) -> int:
    """Returns the exit code. Raises FtisError on a specification that can't be used, before anything is simulated."""
    spec = read_specification(options.study, rounds=options.rounds)
    return run_simulations([spec], options.seeds, options.output, jobs=options.jobs)


def run_simulations(specs: Sequence[SimulationSpec], seeds: Sequence[int], output: Path, *, jobs: int = 1) -> int:
    """Every specification with every seed, all specifications of a seed first; what studies in Python call.

    Shows its progress on standard error and returns an exit code: 0, or 130 after Ctrl-C. Raises FtisError.
    """
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"simulations: two are called {max(names, key=names.count)!r}; results would mix")
    todo = [Job(spec, seed) for seed in seeds for spec in specs]
    console = Console(stderr=True)
    stop = StopRequest()
    with stop.installed(), _Bars(console, todo) as bars:
        whole = run_jobs(todo, output, processes=jobs, stop=stop, tell=bars.tell)
    if not whole:
        console.print(f"Stopped. The same command goes on from the checkpoints in {output}.", highlight=False)
        return EXIT_STOPPED
    console.print(f"{len(todo)} result files in {output}", highlight=False)
    return 0


class StopRequest:
    """Ctrl-C or SIGTERM: the first asks for a stop at the end of the round, a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        return self._asked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Bars:
    """A bar for all rounds of all runs, and one for each run that is under way."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._done = [0] * len(jobs)
        self._shown: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=console,
        )  # fmt: skip
        total = sum(job.spec.rounds for job in jobs)
        self._all = self._progress.add_task(f"{len(jobs)} runs", total=total, visible=len(jobs) > 1)

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def tell(self, number: int, done: int) -> None:
        """So many rounds of this run are done."""
        job = self._jobs[number]
        self._done[number] = done
        if number not in self._shown:
            self._shown[number] = self._progress.add_task(f"{job.spec.name}, seed {job.seed}", total=job.spec.rounds)
        whole = done == job.spec.rounds and len(self._jobs) > 1
        self._progress.update(self._shown[number], completed=done, visible=not whole)
        self._progress.update(self._all, completed=sum(self._done))
