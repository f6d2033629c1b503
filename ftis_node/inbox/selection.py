"""Which of the peers' groups a step takes: those with more information first, under caps. Pure.

Of those that are about equally informative authors take turns, each with its newest: who is fast, and sends the most,
would crowd out the others, from whom there is as much to learn.
The order follows from what is worked out here alone: rewards, and when a batch came. A name only breaks ties.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.config import CapsConfig
from ftis_node.types import BatchName, PeerId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that could be used: ``information`` as in ``inbox.information``, ``age`` in own rounds since arrival."""

    batch: BatchName
    group_index: int
    author: PeerId
    neighbour: PeerId
    address_range: str
    received_at_ms: int
    age: int
    author_groups: int
    information: float


@dataclass(frozen=True, slots=True)
class Source:
    """An author of batches that nobody looked into yet, and the way one of them came."""

    author: PeerId
    neighbour: PeerId
    address_range: str
    author_groups: int


INFORMATION_STEP = 0.125
INFORMATION_LEVELS = 4
"""Rewards are 0 to 1, so a spread is 0.5 at most. Of eight completions one that is right, or wrong, is level 3, more
are level 4: within a level the newer group is worth more than the last bit of spread."""


def plenty(sources: Sequence[Source], wanted: int) -> list[Candidate]:
    """As many imagined groups of every source as a step could take, each behind any real one."""
    return [
        Candidate(
            batch=BatchName(source.author),
            group_index=index,
            author=source.author,
            neighbour=source.neighbour,
            address_range=source.address_range,
            received_at_ms=0,
            age=0,
            author_groups=source.author_groups,
            information=0.0,
        )
        for source in sources
        for index in range(wanted)
    ]


def select(candidates: Sequence[Candidate], wanted: int, *, groups_per_step: int, caps: CapsConfig) -> list[Candidate]:
    """At most ``wanted`` candidates, none over any cap; each cap allows at least one group.

    What can't be detected (imitation, many identities of one party) is bounded here: per author, per
    delivering neighbour, per address range, and for all authors with little history together.
    """
    author_cap = _cap(caps.author_share, groups_per_step)
    neighbour_cap = _cap(caps.neighbour_share, groups_per_step)
    range_cap = _cap(caps.range_share, groups_per_step)
    newcomer_cap = _cap(caps.newcomer_share, groups_per_step)
    authors: Counter[PeerId] = Counter()
    neighbours: Counter[PeerId] = Counter()
    ranges: Counter[str] = Counter()
    newcomers = 0
    chosen: list[Candidate] = []
    for candidate in _in_order(candidates):
        if len(chosen) >= wanted:
            break
        is_newcomer = candidate.author_groups < caps.newcomer_groups
        if (
            candidate.age > caps.max_age_rounds
            or authors[candidate.author] >= author_cap
            or neighbours[candidate.neighbour] >= neighbour_cap
            or ranges[candidate.address_range] >= range_cap
            or (is_newcomer and newcomers >= newcomer_cap)
        ):
            continue
        chosen.append(candidate)
        authors[candidate.author] += 1
        neighbours[candidate.neighbour] += 1
        ranges[candidate.address_range] += 1
        newcomers += is_newcomer
    return chosen


def _cap(share: float, groups_per_step: int) -> int:
    return max(1, math.floor(share * groups_per_step))


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By level, in turns, newest first; where nothing is known of the information, newest first alone."""
    taken: Counter[tuple[int, PeerId]] = Counter()
    turns: list[tuple[int, int, Candidate]] = []
    for candidate in sorted(candidates, key=_newest_first):
        level = information_level(candidate)
        turns.append((-level, taken[level, candidate.author] if level else 0, candidate))
        taken[level, candidate.author] += 1
    return [candidate for _, _, candidate in sorted(turns, key=_level_and_turn)]


def information_level(candidate: Candidate) -> int:
    """0 without any; else 1 to ``INFORMATION_LEVELS``."""
    if candidate.information <= 0:
        return 0
    return min(INFORMATION_LEVELS, 1 + int(candidate.information / INFORMATION_STEP))


def _newest_first(candidate: Candidate) -> tuple[int, float, bytes, int]:
    return -candidate.received_at_ms, -candidate.information, candidate.batch, candidate.group_index


def _level_and_turn(turn: tuple[int, int, Candidate]) -> tuple[int, int]:
    return turn[:2]
