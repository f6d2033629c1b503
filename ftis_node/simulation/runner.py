"""One seed of a simulation, from its start or its last checkpoint to the end of its result file."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ftis_node.manifest import Run
from ftis_node.simulation import checkpoint
from ftis_node.simulation.checkpoint import Progress
from ftis_node.simulation.engine import Engine, Moment
from ftis_node.simulation.evaluating import Evaluator, evaluation_due
from ftis_node.simulation.figures import DoneLine, EvaluationLine, RunLine
from ftis_node.simulation.lockstep import Lockstep
from ftis_node.simulation.node import SimulatedNode
from ftis_node.simulation.results import (
    SCHEMA_VERSION,
    ResultFile,
    check_same_run,
    environment,
    open_results,
    result_path,
)
from ftis_node.simulation.specification import SimulationSpec
from ftis_node.simulation.timed import Timed
from ftis_node.tasks.registry import build_task
from ftis_node.tasks.task import Task

log = logging.getLogger(__name__)

OnRound = Callable[[int], None]
"""Told how many rounds are done: at the start or after a resume, and after each."""


@dataclass(frozen=True)
class Study:
    """A specification with its data loaded, for as many seeds as one likes."""

    spec: SimulationSpec
    run: Run
    tasks: Mapping[str, Task]
    evaluations: Mapping[str, Task]


def prepare(spec: SimulationSpec) -> Study:
    """Load the data. Raises ConfigError, TaskError."""
    return Study(
        spec=spec,
        run=spec.build_run(),
        tasks={task.name: build_task(task.name, task.parameters, spec.sources()) for task in spec.run.tasks},
        evaluations={e.name: build_task(e.task, e.parameters, spec.sources()) for e in spec.evaluations},
    )


def simulate(
    study: Study, seed: int, directory: Path, *, evaluator: Evaluator | None = None, on_round: OnRound | None = None,
    stop: Callable[[], bool] | None = None,
) -> Path | None:  # fmt: skip
    """Run one seed to its end; returns the result file, or None when ``stop`` said so and a checkpoint was written.

    ``evaluator`` is given where several runs are made that begin with the same weights.
    A file that is whole is left as it is, one that isn't goes on from its checkpoint. Raises FtisError.
    """
    tell, must_stop = on_round or _nobody, stop or _never
    path = result_path(directory, study.spec, seed)
    with open_results(path) as results:
        begun = results.first_line()
        if begun is not None:
            check_same_run(begun, path, study.spec, here=None)
            if results.is_whole():
                tell(study.spec.rounds)
                return path
        return path if _Simulation(study, seed, results, evaluator or Evaluator()).finish(tell, must_stop) else None


def _nobody(done: int) -> None:
    del done


def _never() -> bool:
    return False


class _Simulation:
    """A run that isn't whole."""

    def __init__(self, study: Study, seed: int, results: ResultFile, evaluator: Evaluator) -> None:
        self._study = study
        self._spec = study.spec
        self._seed = seed
        self._results = results
        self._evaluator = evaluator
        self._checkpoint = results.path.with_suffix(".checkpoint")
        torch.set_num_threads(self._spec.torch_threads)
        self._engine: Engine = (
            Timed(self._spec, study.run, study.tasks, self._evaluated, seed=seed)
            if self._spec.pace == "costs"
            else Lockstep(self._spec, study.run, study.tasks, seed=seed)
        )

    def finish(self, tell: OnRound, must_stop: Callable[[], bool]) -> bool:
        started = time.monotonic()
        saved = self._begin_or_resume()
        engine = self._engine
        tell(engine.progress)
        while not engine.done:
            if must_stop():
                if saved != engine.round:
                    self._save()
                return False
            self._results.write(engine.advance())
            self._results.write(self._evaluations_of_the_round())
            if engine.round % self._spec.checkpoint_every == 0:
                self._save()
                saved = engine.round
            tell(engine.progress)
        self._results.write([DoneLine(rounds=engine.most_rounds, seconds=round(time.monotonic() - started, 2))])
        self._results.sync()
        self._checkpoint.unlink(missing_ok=True)
        return True

    def _begin_or_resume(self) -> int | None:
        """Returns the round of the checkpoint that there is now."""
        device = str(next(self._engine.nodes[0].party.loaded.model.parameters()).device)
        here = environment(device)
        begun = self._results.first_line()
        if begun is not None and self._checkpoint.exists():
            check_same_run(begun, self._results.path, self._spec, here=here)
            progress = checkpoint.restore(self._checkpoint, self._engine)
            self._results.cut(progress.results_bytes)
            log.info("%s: goes on after round %d", self._results.path, self._engine.round)
            return self._engine.round
        # Without a checkpoint there is nothing to go on from.
        self._results.cut(0)
        first = RunLine(
            schema_version=SCHEMA_VERSION,
            seed=self._seed,
            specification=self._spec,
            environment=here,
            made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        self._results.write([first])
        self._results.write(self._evaluations_of_the_round())
        return None

    def _save(self) -> None:
        checkpoint.save(self._checkpoint, self._engine, Progress(self._results.sync()))

    def _evaluations_of_the_round(self) -> Iterator[EvaluationLine]:
        """What is due after this round in lockstep; otherwise the parties ask for it. Hostile ones are not measured."""
        done = self._engine.round
        if self._spec.pace == "lockstep" and evaluation_due(self._spec, done):
            for node in self._engine.nodes:
                if node.spec.harm is None:
                    yield from self._evaluated(node, Moment(done, at_an_end=done in (0, self._spec.rounds)))

    def _evaluated(self, node: SimulatedNode, moment: Moment) -> list[EvaluationLine]:
        return [
            self._evaluator.evaluate(
                self._spec, node, wanted, self._study.evaluations[wanted.name], round_number=moment.round,
                at_an_end=moment.at_an_end,
            ).model_copy(update={"time": moment.time, "own_tokens": moment.own_tokens})
            for wanted in self._spec.evaluations
        ]  # fmt: skip
