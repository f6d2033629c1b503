"""Greedy pass@1 on items of a task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ftis_node.errors import ModelError
from ftis_node.models import LoadedModel
from ftis_node.rollout.engine import GREEDY, RolloutEngine
from ftis_node.round import prompt_ids
from ftis_node.tasks.task import Task
from ftis_node.types import FinishReason

CONFIDENCE_Z = 1.96


@dataclass(frozen=True)
class Answer:
    """One item with what the model said to it. ``prompt_tokens`` and ``completion_tokens`` are counts."""

    index: int
    prompt: str
    expected: str
    completion: str
    right: bool
    prompt_tokens: int
    completion_tokens: int
    finished: bool


@dataclass(frozen=True)
class Evaluation:
    """Right answers of ``total`` items; ``low`` and ``high`` bound the accuracy at 95 % (Wilson)."""

    correct: int
    total: int
    low: float
    high: float
    answers: tuple[Answer, ...]

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def greedy_accuracy(
    engine: RolloutEngine, loaded: LoadedModel, task: Task, *, limit: int, max_tokens: int, batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:  # fmt: skip
    """Answer ``limit`` items, spread evenly over the task, with the most likely tokens.

    ``batch`` prompts are answered at a time (all at once if not given); ``progress`` is told (done, right) after each.
    """
    count = min(limit, task.size)
    indices = [index * task.size // count for index in range(count)]
    answers: list[Answer] = []
    for first in range(0, count, batch or count):
        answers += _answer(engine, loaded, task, indices[first : first + (batch or count)], max_tokens)
        if progress is not None:
            progress(len(answers), sum(answer.right for answer in answers))
    correct = sum(answer.right for answer in answers)
    return Evaluation(correct, count, *wilson_interval(correct, count), tuple(answers))


def _answer(
    engine: RolloutEngine, loaded: LoadedModel, task: Task, indices: list[int], max_tokens: int
) -> list[Answer]:
    items = [task.item(index) for index in indices]
    prompts = [prompt_ids(loaded, item) for item in items]
    for index, prompt in zip(indices, prompts, strict=True):
        if loaded.positions is not None and len(prompt) + max_tokens > loaded.positions:
            raise ModelError(
                f"{task.name}: item {index} has a prompt of {len(prompt)} tokens; with {max_tokens} new ones it is"
                f" longer than the {loaded.positions} positions of {loaded.name}: lower --max-tokens"
            )
    stops = [item.stop for item in items]
    rollouts = engine.generate(prompts, count=1, sampling=GREEDY, max_tokens=max_tokens, seed=0, stops=stops)
    answers = []
    for index, item, prompt, (completion,) in zip(indices, items, prompts, rollouts.completions, strict=True):
        text = completion.text.decode("utf-8", "replace")
        answers.append(
            Answer(
                index=index,
                prompt=item.prompt,
                expected=item.answer,
                completion=text,
                right=task.reward(item, text) == 1.0,
                prompt_tokens=len(prompt),
                completion_tokens=len(completion.token_ids),
                finished=completion.finish_reason is FinishReason.STOP,
            )
        )
    return answers


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """95 % score interval of a share (Wilson 1927)."""
    z2 = CONFIDENCE_Z**2
    share = correct / total
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = CONFIDENCE_Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)
