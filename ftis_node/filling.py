"""When a node samples on, and when it takes its step: it never waits for anybody. Pure.

A step has ``groups_per_step`` places. An own group takes one if it teaches, and so does a peer's; the floor of
``own_groups`` places is never given to peers, also where own groups leave it empty::

    sample own_groups                                 at once: no peer's group could make them unnecessary
    until all places are taken, or groups_per_step own groups have been sampled:
        take what peers have sent meanwhile; sample a few more

So a node without peers samples what it would alone, one with peers stops as soon as they fill the rest, and one whose
groups teach nothing, for they are all right or all wrong, does not sample for ever. The daemon and the simulation ask
the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """Of a step: ``groups_per_step`` in all, ``own_groups`` of them never a peer's."""

    groups_per_step: int
    own_groups: int


@dataclass(frozen=True, slots=True)
class Filling:
    """How far a step has come: own groups ``sampled`` for it, and those of them that take a place (``own``)."""

    sampled: int = 0
    own: int = 0


def places_for_peers(filling: Filling, places: Places) -> int:
    """How many places peers' groups may take.

    Example: of 24 places with a floor of 6, with 9 own groups that teach, 15; with 2 that do, 18.
    """
    return max(0, places.groups_per_step - max(filling.own, places.own_groups))


def next_chunk(filling: Filling, peers: int, places: Places) -> int:
    """How many own groups to sample before looking at peers' again; 0: take the step.

    ``peers`` are those that would take a place now. After the floor it is half the floor at a time, so that a node
    neither samples much that peers make unnecessary nor decodes in crumbs.
    """
    if filling.sampled < places.own_groups:
        return places.own_groups - filling.sampled
    missing = places_for_peers(filling, places) - peers
    left = places.groups_per_step - filling.sampled
    return max(0, min(missing, left, max(1, places.own_groups // 2)))
