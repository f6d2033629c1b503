"""The tiny models that studies start from, and the sets on which they are evaluated.

A start has to leave room on every set: one that never saw four terms stays at 5 % on them, whatever is done with it.
So schooling goes on from a built-in model with a little of what is out of distribution, and ends with the bad habit of
guessing at once, which reinforcement learning on the training task can undo on all sets.

    python -m scripts.studies.starts FOLDER [NAME ...]    makes them, and prints their accuracy on every set
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.evaluate import greedy_accuracy
from ftis_node.model_places import BUILTIN_FOLDER
from ftis_node.models import LoadedModel, load_model
from ftis_node.rollout.engine import RolloutEngine
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.round import prompt_ids
from ftis_node.tasks.registry import TaskSources, build_task
from ftis_node.tasks.task import Task
from ftis_node.types import SamplingParams
from scripts.builtin_models import MERGES
from scripts.schooling import Kind, Stage, Start, school
from scripts.studies.sets import TASKS, evaluation_sets

TEST_ITEMS, LONGEST_ANSWER, DECODE_ROWS = 2000, 48, 256


def _mixture(*shares: float) -> tuple[Kind, ...]:
    """Training items of every kind, by share in the order of ``TASKS``."""
    return tuple(Kind(share, *task) for share, task in zip(shares, TASKS.values(), strict=True))


ALL_KINDS = _mixture(0.25, 0.25, 0.2, 0.3)


def _school(steps: int, rate: float, kinds: tuple[Kind, ...] = ALL_KINDS) -> Stage:
    return Stage(steps, rate, step_by_step=0.85, wrong_direct=0.1, wrong_steps=0.02, kinds=kinds)


def _habit(steps: int, rate: float, step_by_step: float, kinds: tuple[Kind, ...] = ALL_KINDS) -> Stage:
    return Stage(steps, rate, step_by_step=step_by_step, wrong_direct=0.7, wrong_steps=0.05, kinds=kinds)


def _small(name: str, seed: int) -> Start:
    stages = _school(2400, 2e-3), _habit(80, 1e-3, step_by_step=0.35)
    return Start(name, hidden=64, layers=2, seed=seed, stages=stages, base=BUILTIN_FOLDER / "small")


def _large(name: str, seed: int, *stages: Stage) -> Start:
    return Start(name, hidden=128, layers=4, seed=seed, stages=stages, base=BUILTIN_FOLDER / "large")


SUMS, DIFFERENCES = _mixture(0.3, 0.3, 0.2, 0.2), _mixture(0.1, 0.15, 0.05, 0.7)
BOTH = _school(900, 1e-3), _habit(50, 5e-4, step_by_step=0.35), _habit(40, 5e-4, step_by_step=0.25)
GUESSED_SUMS = _mixture(0.4, 0.2, 0.3, 0.1)
A_LITTLE_MORE = _mixture(0.1, 0.1, 0.1, 0.7)  # or differences stay at the floor

STARTS = (
    _small("small", 11),
    _small("small-b", 16),
    _large("large", 12, *BOTH),
    _large("large-b", 17, *BOTH),
    _large("adder", 13, _school(600, 1e-3, SUMS), _habit(50, 5e-4, 0.35, SUMS), _habit(60, 5e-4, 0.5, A_LITTLE_MORE)),
    _large(
        "subtracter", 14, _school(900, 1e-3, DIFFERENCES), _habit(50, 5e-4, 0.35, DIFFERENCES),
        _habit(40, 5e-4, 0.25, GUESSED_SUMS),
    ),
    Start(
        "beginner", hidden=64, layers=2, seed=18, base=BUILTIN_FOLDER / "small",
        stages=(_school(2400, 2e-3), Stage(400, 1e-3, 0.01, 1.0, 0.5, ALL_KINDS)),
    ),
    Start(
        "merged", hidden=64, layers=2, seed=15, base=BUILTIN_FOLDER / "merged", merges=MERGES,
        stages=(_school(2400, 2e-3), _habit(80, 1e-3, step_by_step=0.35)),
    ),
)  # fmt: skip


def start_folders(directory: Path) -> dict[str, Path]:
    """Where each start lies, or will.

    A folder's name holds a hash of the recipe, so that one of another recipe is never taken for it.
    """
    return {start.name: directory / f"{start.name}-{_recipe_hash(start)}" for start in STARTS}


def make_starts(directory: Path, names: Sequence[str]) -> dict[str, Path]:
    """Folders of these starts by name; those that aren't there yet are made, in some minutes each."""
    starts = {start.name: start for start in STARTS}
    unknown = sorted(set(names) - set(starts))
    if unknown:
        raise ValueError(f"there is no start {unknown[0]!r}; there are {', '.join(starts)}")
    directory.mkdir(parents=True, exist_ok=True)
    folders = start_folders(directory)
    for name in names:
        if not folders[name].exists():
            _make(starts[name], folders[name])
    return {name: folders[name] for name in names}


def _recipe_hash(start: Start) -> str:
    """Of all that determines the weights but the versions of libraries; the same wherever the package lies."""
    recipe = hashlib.sha256(repr(replace(start, base=None)).encode())
    if start.base is not None:
        recipe.update((start.base / "model.safetensors").read_bytes())
    return recipe.hexdigest()[:12]


def _make(start: Start, folder: Path) -> None:
    """Written under another name first, so that a folder that is there is whole; one that is there by then is left."""
    with _deterministic():
        model, tokenizer = school(start)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    except OSError:
        # Another process that made the same start may have been first.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _deterministic() -> Iterator[None]:
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def _sampled_accuracy(engine: RolloutEngine, loaded: LoadedModel, task: Task, count: int) -> float:
    """At temperature 1, of one answer to each of ``count`` items."""
    items = [task.item(index * task.size // count) for index in range(count)]
    rollouts = engine.generate(
        [prompt_ids(loaded, item) for item in items], count=1, sampling=SamplingParams(1.0), max_tokens=LONGEST_ANSWER,
        seed=0, stops=[item.stop for item in items],
    )  # fmt: skip
    texts = [completion.text.decode("utf-8", "replace") for (completion,) in rollouts.completions]
    return sum(task.reward(item, text) for item, text in zip(items, texts, strict=True)) / count


def print_accuracies(folder: Path) -> None:
    """A line for every evaluation set."""
    loaded = load_model(ModelConfig(name=str(folder), device="cpu"), LoraConfig(), seed=0)
    engine = TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=DECODE_ROWS)
    for one in evaluation_sets(TEST_ITEMS):
        task = build_task(one.task, one.parameters, TaskSources())
        count = min(one.items, task.size)
        greedy = greedy_accuracy(engine, loaded, task, limit=count, max_tokens=LONGEST_ANSWER, batch=DECODE_ROWS)
        at_once = sum("=" not in answer.completion for answer in greedy.answers) / count
        sampled = _sampled_accuracy(engine, loaded, task, count)
        print(
            f"{folder.name:24} {one.name:16} {count} items: greedy {greedy.accuracy:.3f}, sampled {sampled:.3f},"
            f" guessed at once {at_once:.2f}",
            flush=True,
        )


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m scripts.studies.starts FOLDER [NAME ...]")
    try:
        folders = make_starts(Path(sys.argv[1]), sys.argv[2:] or [start.name for start in STARTS])
    except ValueError as error:
        sys.exit(f"starts: {error}")
    for folder in folders.values():
        print_accuracies(folder)


if __name__ == "__main__":
    main()
