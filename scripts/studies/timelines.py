"""A party's accuracy over its simulated time and its own tokens. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ftis_node.simulation.pace import Costs
from ftis_node.simulation.results import Results


@dataclass(frozen=True)
class Point:
    """An evaluation: simulated seconds, tokens that the party had sampled by then, accuracy."""

    time: float
    own_tokens: float
    accuracy: float


Axis = Callable[[Point], float]


def by_time(point: Point) -> float:
    return point.time


def by_tokens(point: Point) -> float:
    return point.own_tokens


def timeline(result: Results, party: str, wanted: str) -> list[Point]:
    """On one set, in the order of time."""
    return [
        Point(line.time or 0.0, float(line.own_tokens or 0), line.accuracy)
        for line in result.evaluations
        if line.party == party and line.set == wanted
    ]


def at_other_costs(points: Sequence[Point], result: Results, party: str, costs: Costs) -> list[Point]:
    """What ``timeline`` would be of a party alone that has other costs.

    Alone, costs decide when a round ends and nothing else, where all prompts are of one window. The evaluations must be
    at the ends of rounds.
    """
    (mine,) = (each for each in result.run.specification.parties if each.name == party)
    times, ends, before, now = {0.0: 0.0}, 0.0, 0.0, 0.0
    for line in result.rounds:
        if line.party == party:
            ends = line.time or 0.0
            trained = (ends - before - mine.costs.generation * line.generated_sequences) / mine.costs.training
            now += costs.generation * line.generated_sequences + costs.training * trained
            times[ends], before = now, ends
    return [Point(times[point.time], point.own_tokens, point.accuracy) for point in points]


def reached(points: Sequence[Point], target: float, axis: Axis) -> float | None:
    """Where the accuracy first is ``target``, along a line between two evaluations; None if it never is."""
    for before, after in zip([points[0], *points], points, strict=False):
        if after.accuracy >= target:
            rise = after.accuracy - before.accuracy
            share = (target - before.accuracy) / rise if rise > 0 else 1.0
            return axis(before) + share * (axis(after) - axis(before))
    return None


def accuracy_at(points: Sequence[Point], time: float) -> float:
    """Along a line between two evaluations; behind the last one it stays."""
    position = bisect_right([point.time for point in points], time)
    if position == len(points):
        return points[-1].accuracy
    before, after = points[position - 1], points[position]
    return before.accuracy + (time - before.time) / (after.time - before.time) * (after.accuracy - before.accuracy)
