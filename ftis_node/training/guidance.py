"""Learning from peers what the own model would not have said: ``ftis.guidance = "own-rate"``.

Two things keep a party from what it lacks. A peer that is right in all of its completions sends groups with equal
rewards, whose advantages are 0; and an answer that the own model finds improbable has an importance weight next to 0.
Both are measured against the wrong thing where the question is one that the own model fails. So with b, the share of
own completions of this task that were right lately (``OwnRates``), for a completion of a peer with reward r and
advantage A within its group::

    gain        r - b where A >= 0 and r > b, else 0
    advantage   max(A, gain)
    weight      w >= guidance_floor * gain

Where the own model succeeds, gain is next to 0 and all is as without guidance. Wrong completions, the filter, the clip
and the upper bound of w are untouched, and b comes from own samples alone: no peer can move it. That r - b is an
advantage over the own policy's mean reward is the baseline of REINFORCE (Williams 1992), for a behaviour policy that is
somebody else's; the weights that shaped importance sampling gives to right answers of a better policy (LUFFY, arXiv
2504.14945) vanish where the own probability does, a floor doesn't.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FEWEST = 8
"""Own groups of a task before its rate says anything."""

WINDOW = 32
"""Own groups that the rate is about the mean of: some rounds, so that it follows the model."""


@dataclass(frozen=True, slots=True)
class OwnRate:
    """Mean reward of own completions of one task, and of how many groups it is."""

    rate: float
    groups: int


@dataclass(frozen=True, slots=True)
class OwnRates:
    """By task. Empty at the start of a training."""

    by_task: Mapping[str, OwnRate] = field(default_factory=dict)

    def of(self, task: str) -> float | None:
        """None until ``FEWEST`` own groups were seen."""
        known = self.by_task.get(task)
        return None if known is None or known.groups < FEWEST else known.rate


def observe(rates: OwnRates, task: str, reward: float) -> OwnRates:
    """After an own group with this mean reward: the mean at first, then one of the last ``WINDOW`` or so."""
    before = rates.by_task.get(task, OwnRate(0.0, 0))
    groups = min(before.groups + 1, WINDOW)
    rate = before.rate + (reward - before.rate) / groups
    return OwnRates({**rates.by_task, task: OwnRate(rate, groups)})


def guided(
    advantages: Tensor, rewards: Tensor, own_rates: Sequence[float | None], *, floor: float
) -> tuple[Tensor, Tensor | None]:
    """Advantages, and lower bounds of the importance weights; all [S]. None instead of bounds where nobody guides.

    ``own_rates`` has b for each sequence, None where it doesn't guide.
    """
    if all(rate is None for rate in own_rates):
        return advantages, None
    rates = torch.tensor([torch.inf if rate is None else rate for rate in own_rates], dtype=advantages.dtype)
    gain = (rewards.to(advantages.dtype) - rates).clamp(min=0.0).masked_fill(advantages < 0, 0.0)
    return torch.maximum(advantages, gain).where(gain > 0, advantages), floor * gain


def to_state(rates: OwnRates) -> dict[str, Any]:
    """As a checkpoint stores it: numbers, strings and lists."""
    return {task: [known.rate, known.groups] for task, known in rates.by_task.items()}


def from_state(state: Mapping[str, Any] | None) -> OwnRates:
    """Of None, as a checkpoint of a version before this one has it, an empty one."""
    return OwnRates({task: OwnRate(rate, groups) for task, (rate, groups) in (state or {}).items()})
