"""Which of the peers' groups a step takes: newest first, under caps. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftis_node.config import CapsConfig
from ftis_node.types import BatchName, PeerId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group that could be used. ``age`` is in own rounds since it arrived."""

    batch: BatchName
    group_index: int
    author: PeerId
    neighbour: PeerId
    address_range: str
    received_at_ms: int
    age: int
    author_groups: int


@dataclass(frozen=True, slots=True)
class Source:
    """An author that was heard from lately, and the way its last batch came."""

    author: PeerId
    neighbour: PeerId
    address_range: str
    author_groups: int


OVERDUE_FACTOR = 4.0
SHORTEST_PATIENCE_MS = 1_000.0
FEWEST_ARRIVALS = 4


def overdue(arrivals: Iterable[tuple[PeerId, int]], now_ms: int) -> set[PeerId]:
    """Authors of whom nothing has come for much longer than is usual for them; ``arrivals``: author and time (ms).

    Nodes that all wait for each other would wait until their timeouts: each has what the others could give, and none
    makes more. An author with few arrivals is never overdue, for its pace isn't known.
    """
    times: dict[PeerId, list[int]] = {}
    for author, at_ms in arrivals:
        times.setdefault(author, []).append(at_ms)
    late = set()
    for author, came in times.items():
        pace = (max(came) - min(came)) / max(1, len(came) - 1)
        patience = max(SHORTEST_PATIENCE_MS, OVERDUE_FACTOR * pace)
        if len(came) >= FEWEST_ARRIVALS and now_ms - max(came) > patience:
            late.add(author)
    return late


def attainable(sources: Sequence[Source], wanted: int, *, groups_per_step: int, caps: CapsConfig) -> int:
    """How many groups these sources could give to a step if each had plenty: waiting for more is in vain."""
    return len(select(plenty(sources, wanted), wanted, groups_per_step=groups_per_step, caps=caps))


def plenty(sources: Sequence[Source], wanted: int) -> list[Candidate]:
    """As many imagined groups of every source as a step could take, older than any real one."""
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
    for candidate in sorted(candidates, key=_newest_first):
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


def _newest_first(candidate: Candidate) -> tuple[int, bytes, int]:
    return -candidate.received_at_ms, candidate.batch, candidate.group_index
