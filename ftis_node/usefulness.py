"""How much an author's samples weigh, from how well they agreed with own held-out prompts. Pure.

Every measurement (``agreement``) gives two cosines of one round: of the author's gradient and of the own samples'
gradient with the gradient on held-out prompts. With x and y their means over the author's newest measurements, and v
the variance of x - (x / y) y, what is left of an author's mean beside the own one::

    factor = (x y + v) / (y y + v), within 0 and 1

It is the mean of x / y after the measurements, where before them it was expected to be 1 (as useful as own samples)
with a standard deviation of 1: measurements that say little leave it near 1, and those that are clear decide, however
few or many there are. 0 is for who points away from what is wanted.

A factor can only make less of somebody. An author whose identity is new weighs 1, and so does one that was good as long
as it was measured: the caps bound what these can do, not this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ftis_node.store.authors import OWN_ORIGIN, Measurement
from ftis_node.training.collate import TrainingGroup

NEWEST = 20
"""Measurements of one author that count: models change, and what was measured long ago says less."""

FEWEST = 4
"""With fewer an author weighs 1: their scatter can't be told. (As for the intervals in ``status.agreement``.)"""

LARGEST_CORRECTION = 2.0
"""A cosine is drawn towards 0 by noise, the more the fewer sequences a gradient is the mean of: where noise is most of
it, in proportion to the root of their number. Who gives less than the own samples is compared as if it gave as much,
up to this factor; where noise is little, that errs in the author's favour."""


def weight_factors(measurements: Iterable[Measurement]) -> dict[str, float]:
    """By origin, 0 to 1: of every author that was measured often enough. Who isn't there weighs 1."""
    own: dict[int, Measurement] = {}
    others: defaultdict[str, list[Measurement]] = defaultdict(list)
    for measured in measurements:
        if measured.origin == OWN_ORIGIN:
            own[measured.round] = measured
        else:
            others[measured.origin].append(measured)
    found = {}
    for origin, all_of_it in others.items():
        paired = sorted((m for m in all_of_it if m.round in own), key=lambda m: m.round)[-NEWEST:]
        if len(paired) >= FEWEST:
            found[origin] = _factor([(_corrected(m, own[m.round]), own[m.round].agreement) for m in paired])
    return found


def _corrected(measured: Measurement, own: Measurement) -> float:
    if not measured.trained:  # it weighed 0 in that round: how many sequences it would have given isn't known
        return measured.agreement
    fewer = math.sqrt(max(1.0, own.trained / measured.trained))
    return measured.agreement * min(LARGEST_CORRECTION, fewer)


def _factor(pairs: Sequence[tuple[float, float]]) -> float:
    """From pairs of an author's and the own agreement, at least two."""
    count = len(pairs)
    theirs, own = sum(x for x, _ in pairs) / count, sum(y for _, y in pairs) / count
    if own <= 0:  # no yardstick: own samples don't show what is wanted either
        return 1.0
    ratio = theirs / own
    variance = sum((x - ratio * y) ** 2 for x, y in pairs) / (count - 1) / count
    return max(0.0, min(1.0, (theirs * own + variance) / (own * own + variance)))


def weighted(groups: Sequence[TrainingGroup], weights: Mapping[str, float]) -> list[TrainingGroup]:
    """The groups with their authors' factors; own groups have none."""
    return [replace(group, weight=weights.get(group.origin, 1.0)) for group in groups]
