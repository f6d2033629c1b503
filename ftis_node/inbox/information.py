"""How much a group can teach here, from what is worked out here alone. Pure."""

from __future__ import annotations

LEAST_GAIN = 0.25
"""A group that is right throughout teaches who is wrong at least this often in its task; below, it would take a place
from one that teaches more."""


def information(reward: float, spread: float, own_rate: float | None) -> float:
    """0 to 0.5; 0 where there is nothing to learn.

    ``reward`` and ``spread`` are mean and population standard deviation of a group's rewards, ``own_rate`` how often
    this party is right in the group's task, where that is known and peers guide (``ftis.guidance``). A group of equal
    rewards has no advantage of its own: of it the half of what it is better than this party counts, so that one that is
    right where this party never is weighs as much as one that is half right.
    """
    if spread > 0:
        return spread
    gain = 0.0 if own_rate is None else reward - own_rate
    return gain / 2 if gain >= LEAST_GAIN else 0.0
