"""Scores and the choice of whom to dial."""

import random

from hypothesis import given
from hypothesis import strategies as st

from ftis_node.inbox.verify import RejectReason
from ftis_node.swarm.peers import (
    BAN_AT,
    COSTS,
    DIALS_AT_ONCE,
    HALF_LIFE_MS,
    HIGHEST,
    LOWEST,
    Dialable,
    Dialled,
    Inbound,
    Score,
    charged,
    must_be_banned,
    rewarded,
    whom_to_dial,
    whom_to_leave,
    whom_to_replace,
)
from ftis_node.types import PeerId

NOW = 1_800_000_000_000
OWN = PeerId(b"o" * 32)


def test_forgeries_ban_sooner_than_other_faults() -> None:
    def faults_until_banned(reason: str) -> int:
        score, count = Score(), 0
        while not must_be_banned(score, NOW):
            score, count = charged(score, reason, NOW), count + 1
        return count

    assert faults_until_banned("inflation") == 2
    assert faults_until_banned("bad_signature") == 3
    assert faults_until_banned("sampling") == 10


def test_costs_name_reasons_that_exist() -> None:
    assert set(COSTS) <= {reason.value for reason in RejectReason} | {"quarantined"}


def test_a_score_decays_towards_zero() -> None:
    low = charged(Score(), "bad_signature", NOW)
    assert low.now(NOW + HALF_LIFE_MS) == low.value / 2
    assert not must_be_banned(Score(BAN_AT, NOW), NOW + 1000)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**7)), max_size=200))
def test_scores_are_bounded(events: list[tuple[bool, int]]) -> None:
    score, now = Score(), NOW
    for good, later in events:
        now += later
        score = rewarded(score, 100, now) if good else charged(score, "inflation", now)
        assert LOWEST <= score.now(now) <= HIGHEST


def test_a_good_history_does_not_buy_many_forgeries() -> None:
    score = rewarded(Score(), 10**6, NOW)
    for _ in range(3):
        score = charged(score, "bad_signature", NOW)
    assert must_be_banned(score, NOW)


def entry(number: int, target: str, *, reached: int = 0, failed: int = 0, failures: int = 0) -> Dialable:
    return Dialable(PeerId(bytes([number]) * 32), target, reached, failed, failures)


def choose(*known: Dialable, wanted: int = 8, ranges: tuple[str, ...] = (), now: int = NOW) -> list[str]:
    chosen = whom_to_dial(
        known, own_id=OWN, wanted=wanted, connected_ranges=ranges, now_ms=now, lately_retry_ms=60_000,
        rng=random.Random(0),
    )  # fmt: skip
    return [address.target for address in chosen]


def test_ranges_without_a_connection_come_first_then_what_worked_before() -> None:
    near, far, never = entry(1, "10.0.0.1:5", reached=9), entry(2, "10.0.9.1:5", reached=9), entry(3, "10.0.8.1:5")
    assert choose(near, never, far, ranges=("10.0.0.0/24",)) == ["10.0.9.1:5", "10.0.8.1:5"]
    assert len(choose(near, far, never)) == DIALS_AT_ONCE
    assert choose(near, wanted=0) == []


def test_the_node_itself_and_two_addresses_of_one_peer() -> None:
    assert choose(Dialable(OWN, "10.0.0.1:5", 9, 0, 0)) == []
    assert len(choose(entry(1, "10.0.0.1:5"), entry(1, "10.0.1.1:5"))) == 1


def test_an_address_that_failed_waits_twice_as_long_each_time() -> None:
    failed = entry(1, "10.0.0.1:5", failed=NOW, failures=3)
    assert choose(failed, now=NOW + 39_000) == []
    assert choose(failed, now=NOW + 41_000) == ["10.0.0.1:5"]
    often = entry(1, "10.0.0.1:5", failed=NOW, failures=11)
    assert choose(often, now=NOW + 3_601_000) == ["10.0.0.1:5"]


def test_an_address_that_worked_lately_is_tried_again_soon() -> None:
    """A partition: many failures in a row, and then the network is whole again."""
    often = entry(1, "10.0.0.1:5", reached=NOW - 600_000, failed=NOW, failures=11)
    assert choose(often, now=NOW + 59_000) == []
    assert choose(often, now=NOW + 61_000) == ["10.0.0.1:5"]


def inbound(name: str, address_range: str, *, age: float = 100.0, silent: float = 1.0) -> Inbound:
    return Inbound(PeerId(name.encode().ljust(32)), address_range, age, silent)


def test_who_has_fallen_silent_makes_room_first() -> None:
    crowd = [inbound("a", "x"), inbound("b", "x", silent=20.0), inbound("c", "x", silent=30.0)]
    assert whom_to_replace(crowd, "x", silent_after=15) == crowd[2].peer


def test_mallorys_many_connections_from_one_range_make_room_for_others_and_not_for_her() -> None:
    crowd = [inbound("honest", "h"), *(inbound(f"mallory{i}", "m", age=i) for i in range(1, 10))]
    assert whom_to_replace(crowd, "other", silent_after=15) == crowd[1].peer  # the youngest of hers
    assert whom_to_replace(crowd, "m", silent_after=15) is None


def test_the_older_half_of_the_chosen_neighbours_stays() -> None:
    chosen = [Dialled(PeerId(bytes([i]) * 32), "x", age_seconds=1000 - i, score=-i) for i in range(8)]
    assert whom_to_leave(chosen, wanted=8) == chosen[7].peer
    assert whom_to_leave(chosen[:4], wanted=8) is None
    best_are_young = [Dialled(e.peer, e.address_range, e.age_seconds, score=-e.score) for e in chosen]
    assert whom_to_leave(best_are_young, wanted=8) == chosen[4].peer
    assert whom_to_leave([], wanted=8) is None
