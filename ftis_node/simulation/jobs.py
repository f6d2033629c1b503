"""Many runs, one after the other or in several processes. A run's numbers don't depend on which process it is in."""

from __future__ import annotations

import functools
import multiprocessing
import queue
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ftis_node.allocator import tune_malloc
from ftis_node.errors import FtisError
from ftis_node.simulation.specification import SimulationSpec

EXIT_STOPPED = 130
POLL_SECONDS = 0.5


class SimulationError(FtisError):
    """A run that ended otherwise than it should."""


@dataclass(frozen=True)
class Job:
    """One run."""

    spec: SimulationSpec
    seed: int


Tell = Callable[[int, int], None]
"""The position of a run among all, and how many of its rounds are done."""


def run_jobs(jobs: Sequence[Job], output: Path, *, processes: int, stop: Callable[[], bool], tell: Tell) -> bool:
    """Whether all runs are whole; False when ``stop`` said so and there are checkpoints. Raises FtisError.

    A specification that can't be used ends all: the others stop at the end of their round.
    """
    if min(processes, len(jobs)) > 1:
        return _in_processes(jobs, output, min(processes, len(jobs)), stop, tell)
    return _run(list(enumerate(jobs)), output, stop, tell)


def _run(jobs: Sequence[tuple[int, Job]], output: Path, stop: Callable[[], bool], tell: Tell) -> bool:
    tune_malloc()
    # These import torch, which must come after tune_malloc.
    from ftis_node.simulation.evaluating import Evaluator
    from ftis_node.simulation.runner import Study, prepare, simulate

    prepared: dict[str, Study] = {}
    evaluator = Evaluator()
    for number, job in jobs:
        if stop():
            return False
        if job.spec.name not in prepared:
            prepared[job.spec.name] = prepare(job.spec)
        study = prepared[job.spec.name]
        on_round = functools.partial(tell, number)
        if simulate(study, job.seed, output, evaluator=evaluator, on_round=on_round, stop=stop) is None:
            return False
    return True


@dataclass(frozen=True)
class _Message:
    """From a worker: so many rounds of a run are done, or why it ends."""

    number: int = 0
    done: int = 0
    error: str | None = None
    exit_code: int = 1


def _in_processes(jobs: Sequence[Job], output: Path, processes: int, stop: Callable[[], bool], tell: Tell) -> bool:
    context = multiprocessing.get_context("spawn")
    messages, stopping = context.Queue(), context.Event()
    dealt = [(number, job.spec.model_dump_json(), job.seed) for number, job in enumerate(jobs)]
    workers: list[BaseProcess] = []
    try:
        for first in range(processes):
            arguments = (dealt[first::processes], output, messages, stopping)
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
    return all(worker.exitcode == 0 for worker in workers)


def _attend(
    workers: Sequence[BaseProcess], messages: Any, stopping: Any, stop: Callable[[], bool], tell: Tell
) -> SimulationError | None:
    """Until all workers have ended; returns the first error."""
    error: SimulationError | None = None
    while True:
        # Asked for before the queue is: what a worker says, it has said before it ends.
        alive = any(worker.is_alive() for worker in workers)
        dead = next((w.exitcode for w in workers if w.exitcode not in (None, 0, EXIT_STOPPED)), None)
        if error is None and dead is not None:
            error = SimulationError(f"a process of the simulation ended with code {dead}")
        if stop() or error is not None:
            stopping.set()
        try:
            message = messages.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if not alive:
                return error
            continue
        if message.error is None:
            tell(message.number, message.done)
        elif error is None:
            error = SimulationError(message.error)
            error.exit_code = message.exit_code


def _work(dealt: Sequence[tuple[int, str, int]], output: Path, messages: Any, stopping: Any) -> None:
    """A worker process. Ctrl-C is its parent's to handle; without the parent it stops at the end of the round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def must_stop() -> bool:
        return bool(stopping.is_set()) or not parent.is_alive()

    def tell(number: int, done: int) -> None:
        messages.put(_Message(number, done))

    try:
        jobs = [(number, Job(SimulationSpec.model_validate_json(spec), seed)) for number, spec, seed in dealt]
        whole = _run(jobs, output, must_stop, tell)
    except FtisError as error:
        messages.put(_Message(error=str(error), exit_code=error.exit_code))
        return
    if not whole:
        raise SystemExit(EXIT_STOPPED)
