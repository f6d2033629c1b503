"""What to think of a peer, and whom to dial next. Pure: numbers in, decisions out.

Accepting, rejecting and ignoring are three things: an accepted group earns a little, a rejected one costs by
how bad it is, and what costs nothing (age, skew, duplicates) is ignored. A score goes back towards 0 with time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftis_node.swarm.addresses import Address, address_range, parse_address
from ftis_node.types import PeerId

HALF_LIFE_MS = 3_600_000
HIGHEST, LOWEST = 20.0, -200.0
BAN_AT = -100.0
BAN_MS = 3_600_000
GROUP_ACCEPTED = 0.05

COSTS: Mapping[str, float] = {
    "inflation": 60.0,
    "bad_signature": 40.0,
    "malformed": 30.0,
    "too_large": 30.0,
    "quarantined": 40.0,
    "implausible_epoch": 20.0,
    "fingerprint": 20.0,
}
"""What a rejection costs by its reason."""

ANY_OTHER_COST = 10.0

FIRST_RETRY_MS = 5_000
LONGEST_RETRY_MS = 3_600_000
LATELY_MS = 3_600_000
DIALS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` as it was at ``at_ms``."""

    value: float = 0.0
    at_ms: int = 0

    def now(self, now_ms: int) -> float:
        """The value after its decay."""
        return self.value * float(0.5 ** (max(0, now_ms - self.at_ms) / HALF_LIFE_MS))


def rewarded(score: Score, groups: int, now_ms: int) -> Score:
    """After accepted groups."""
    return Score(min(HIGHEST, score.now(now_ms) + GROUP_ACCEPTED * groups), now_ms)


def charged(score: Score, reason: str, now_ms: int) -> Score:
    """After a rejection."""
    return Score(max(LOWEST, score.now(now_ms) - COSTS.get(reason, ANY_OTHER_COST)), now_ms)


def must_be_banned(score: Score, now_ms: int) -> bool:
    return score.now(now_ms) <= BAN_AT


@dataclass(frozen=True, slots=True)
class Dialable:
    """An address of a peer that isn't connected; times in ms, 0 for never."""

    peer: PeerId
    target: str
    reached_ms: int
    failed_ms: int
    failures: int


def whom_to_dial(
    known: Sequence[Dialable], *, own_id: PeerId, wanted: int, connected_ranges: Sequence[str], now_ms: int,
    lately_retry_ms: int, rng: random.Random,
) -> list[Address]:  # fmt: skip
    """At most ``wanted`` (and ``DIALS_AT_ONCE``) addresses of different peers.

    Ranges without a connection go first, then addresses that worked before. An address that failed waits twice
    as long each time; one that worked within the last hour at most ``lately_retry_ms``, so that a split swarm
    heals soon.
    """
    due = [
        entry
        for entry in known
        if entry.peer != own_id and now_ms >= entry.failed_ms + _wait_ms(entry, now_ms, lately_retry_ms)
    ]
    rng.shuffle(due)
    taken = set(connected_ranges)
    due.sort(key=lambda entry: (_range_of(entry.target) in taken, entry.failures, entry.reached_ms == 0))
    chosen: dict[PeerId, Address] = {}
    for entry in due:
        if len(chosen) >= min(wanted, DIALS_AT_ONCE):
            break
        if entry.peer not in chosen:
            address = parse_address(entry.target, source="store")
            chosen[entry.peer] = Address(address.host, address.port, entry.peer)
    return list(chosen.values())


@dataclass(frozen=True, slots=True)
class Inbound:
    """A neighbour that has dialled this node."""

    peer: PeerId
    address_range: str
    age_seconds: float
    silent_seconds: float


def whom_to_replace(inbound: Sequence[Inbound], newcomer_range: str, *, silent_after: float) -> PeerId | None:
    """Whose place a newcomer takes when there is no room: one that has fallen silent, or the youngest of the
    address range that has the most connections, if it has two more than the newcomer's. None: nobody's.
    """
    quietest = max(inbound, key=lambda entry: entry.silent_seconds)
    if quietest.silent_seconds > silent_after:
        return quietest.peer
    crowd = Counter(entry.address_range for entry in inbound)
    address_range, count = crowd.most_common(1)[0]
    if count < crowd[newcomer_range] + 2:
        return None
    youngest = min((e for e in inbound if e.address_range == address_range), key=lambda entry: entry.age_seconds)
    return youngest.peer


@dataclass(frozen=True, slots=True)
class Dialled:
    """A neighbour that this node has chosen and dialled by itself."""

    peer: PeerId
    address_range: str
    age_seconds: float
    score: float


def whom_to_leave(dialled: Sequence[Dialled], *, wanted: int) -> PeerId | None:
    """Who makes room for somebody new: never one of the older half, so that the swarm keeps its long-lived
    connections, and of the others the one with the lowest score, from the most crowded range.
    """
    oldest_first = sorted(dialled, key=lambda entry: -entry.age_seconds)
    movable = oldest_first[max(1, wanted // 2) :]
    if not movable:
        return None
    crowd = Counter(entry.address_range for entry in dialled)
    return min(movable, key=lambda entry: (entry.score, -crowd[entry.address_range], entry.age_seconds)).peer


def _wait_ms(entry: Dialable, now_ms: int, lately_retry_ms: int) -> int:
    if entry.failures == 0:
        return 0
    longest = lately_retry_ms if now_ms - entry.reached_ms < LATELY_MS else LONGEST_RETRY_MS
    return min(longest, FIRST_RETRY_MS << min(entry.failures, 20))


def _range_of(target: str) -> str:
    return address_range(f"ipv4:{target}")
