"""reasoning-gym's generators as tasks (extra ``gym``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any

from ftis_node.errors import ConfigError
from ftis_node.tasks.answer_format import AnswerFormat
from ftis_node.tasks.checker import AnswerChecker
from ftis_node.tasks.checks import GYM_ENTRIES, GymCheck, GymParameter, gym_dataset
from ftis_node.tasks.task import Item, Shot, Split

VERSION = 2
SIZE: Mapping[Split, int] = {"train": 900_000, "test": 10_000}
TEST_SHARE = 5
TRIES = 500
SAMPLED = 100
SHOT_ENTRIES = GYM_ENTRIES - 1

_HASH_SEED = "its items depend on PYTHONHASHSEED"
_OWN_ANSWER = "it scores its own answer as wrong"
UNUSABLE = {
    **dict.fromkeys(
        ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"), _HASH_SEED
    ),
    "acre": "its items depend on the size of the data set",
    **dict.fromkeys(("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _OWN_ANSWER),
}
"""Generators with which peers could not agree on items or rewards (reasoning-gym 0.1.25)."""


@dataclass(frozen=True)
class GymTask:
    """Entries of one generator; one question in five, by hash, is a test item."""

    generator: str
    parameters: tuple[tuple[str, GymParameter], ...]
    seed: int
    format: AnswerFormat
    split: Split
    checker: AnswerChecker

    @property
    def name(self) -> str:
        return f"reasoning-gym:{self.generator}"

    @property
    def size(self) -> int:
        return SIZE[self.split]

    @property
    def _dataset(self) -> Any:
        return gym_dataset(self.generator, self.parameters, self.seed)

    @cached_property
    def data_hash(self) -> str:
        """Over the library's version, all parameters, and a sample of the items."""
        settings = [VERSION, version("reasoning-gym"), self.generator, self.parameters, self.seed, self.split]
        digest = hashlib.sha256(json.dumps([*settings, self.format.name]).encode() + b"\n")
        for index in range(0, self.size, self.size // SAMPLED):
            item = self.item(index)
            digest.update(json.dumps([item.system, item.prompt, item.answer, item.stop]).encode() + b"\n")
        return digest.hexdigest()

    def item(self, index: int) -> Item:
        entry = self._entry_of(index)
        found = self._dataset[entry]
        # The index of the item is that of its entry: the scorer needs the entry again.
        return self.format.item(str(found["question"]).strip(), str(found["answer"]).strip(), entry)

    def _entry_of(self, index: int) -> int:
        """The next entry that is on this side of the split; neighbours may share one."""
        first = index * (TEST_SHARE if self.split == "test" else 1)
        for entry in range(first, first + TRIES):
            if is_test(str(self._dataset[entry]["question"]).strip()) == (self.split == "test"):
                return entry
        raise ConfigError(
            f"task {self.name}: with these parameters it has too few different questions for a {self.split} set"
        )

    def reward(self, item: Item, completion_text: str) -> float:
        """1 for the right answer in the right form, else 0."""
        answer = self.format.answer_of(completion_text)
        if answer is None:
            return 0.0
        check = GymCheck(
            generator=self.generator, parameters=dict(self.parameters), seed=self.seed, entry=item.index, answer=answer
        )
        return float(self.checker.is_right(check))


def is_test(question: str) -> bool:
    return hashlib.sha256(b"reasoning-gym/" + question.encode()).digest()[0] % TEST_SHARE == 0


def build_gym_task(
    generator: str, parameters: Mapping[str, GymParameter], *, seed: int, answer_format: AnswerFormat,
    shots: int, split: Split, checker: AnswerChecker,
) -> GymTask:  # fmt: skip
    """Raises ConfigError for a generator or parameter that can't be used, with the reason."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"task reasoning-gym:{generator}: reasoning-gym is not installed; pip install 'ftis-node[gym]'"
        ) from error
    if generator in UNUSABLE:
        raise ConfigError(f"task reasoning-gym:{generator}: can't be used in a swarm: {UNUSABLE[generator]}")
    if generator not in DATASETS:
        raise ConfigError(f"task reasoning-gym:{generator}: there is no such generator; allowed: {_allowed(DATASETS)}")
    fixed = tuple(sorted(parameters.items()))
    try:
        dataset = gym_dataset(generator, fixed, seed)
        solved = tuple(
            Shot(str(dataset[SHOT_ENTRIES - i]["question"]).strip(), str(dataset[SHOT_ENTRIES - i]["answer"]).strip())
            for i in range(shots)
        )
        task = GymTask(generator, fixed, seed, replace(answer_format, shots=solved), split, checker)
        task.item(0)
    except ConfigError:
        raise
    except Exception as error:  # generators raise AssertionError, TypeError, ValueError, whatever comes
        text = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ConfigError(f"task reasoning-gym:{generator}: refuses its parameters {dict(fixed)}: {text}") from error
    return task


def _allowed(generators: Mapping[str, Any]) -> str:
    return ", ".join(sorted(set(generators) - set(UNUSABLE)))
