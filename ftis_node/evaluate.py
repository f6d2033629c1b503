"""Greedy pass@1 on test items."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ftis_node.models import LoadedModel
from ftis_node.rollout.engine import GREEDY, RolloutEngine
from ftis_node.round import prompt_ids
from ftis_node.tasks.task import Task

CONFIDENCE_Z = 1.96


@dataclass(frozen=True)
class Evaluation:
    """Right answers of ``total`` items; ``low`` and ``high`` bound the accuracy at 95 % (Wilson)."""

    correct: int
    total: int
    low: float
    high: float

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def greedy_accuracy(
    engine: RolloutEngine, loaded: LoadedModel, task: Task, *, limit: int, max_tokens: int
) -> Evaluation:
    """Answer ``limit`` items, spread evenly over the task, with the most likely tokens."""
    count = min(limit, task.size)
    items = [task.item(index * task.size // count) for index in range(count)]
    prompts = [prompt_ids(loaded, item) for item in items]
    rollouts = engine.generate(prompts, count=1, sampling=GREEDY, max_tokens=max_tokens, seed=0)
    correct = sum(
        task.reward(item, group[0].text.decode("utf-8", "replace")) == 1.0
        for item, group in zip(items, rollouts.completions, strict=True)
    )
    return Evaluation(correct, count, *wilson_interval(correct, count))


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """95 % score interval of a share (Wilson 1927)."""
    z2 = CONFIDENCE_Z**2
    share = correct / total
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = CONFIDENCE_Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)
