"""Sums over what nodes say, in which one liar can't drown the others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from fractions import Fraction

MOST_WEIGHT = 20
FEWEST_TO_COMPARE = 3


def bounded_shares(counts: Sequence[int]) -> list[Fraction]:
    """How much of each node's counts a sum takes in: where three or more have counted anything, nobody's weighs more
    than ``MOST_WEIGHT`` times the median one.
    """
    known = [count for count in counts if count]
    if len(known) < FEWEST_TO_COMPARE:
        return [Fraction(1)] * len(counts)
    most = MOST_WEIGHT * statistics.median_low(known)
    return [Fraction(most, max(most, count)) for count in counts]


def weighted_sum(counts: Iterable[int], shares: Sequence[Fraction]) -> int:
    return sum(round(count * share) for count, share in zip(counts, shares, strict=True))
