"""Shares of time and informative groups a minute, out of rounds' reports."""

import pytest

from ftis_node.status.pace import Pace, pace_of
from ftis_node.store.reports import PhaseSeconds, RoundReport


def report(number: int, *, own: int, peers: int, **seconds: float) -> RoundReport:
    return RoundReport(
        round=number, own_groups=own, peer_groups=peers, stepped=True, own_informative=own, peer_informative=peers,
        seconds=PhaseSeconds(**seconds),
    )  # fmt: skip


def test_shares_are_of_the_time_of_all_rounds_and_rates_of_the_time_between_them() -> None:
    rounds = [
        (report(1, own=99, peers=99, waiting=6.0), 10_000),
        (report(2, own=2, peers=4, generating=6.0, training=3.0), 20_000),
        (report(3, own=4, peers=0, generating=3.0, scoring=2.0), 40_000),
    ]
    pace = pace_of(rounds)
    assert (pace.rounds, pace.generating, pace.scoring, pace.training) == (3, 0.45, 0.1, 0.15)
    assert (pace.waiting, pace.measuring) == (pytest.approx(0.3), 0.0)
    assert (pace.own_informative, pace.peer_informative) == (12.0, 8.0)
    assert pace.shares() == "generating 45%, scoring 10%, training 15%, waiting 30%, measuring 0%"
    assert pace.groups() == "12.0 own and 8.0 peers' a minute"


@pytest.mark.parametrize("rounds", [[], [(report(1, own=1, peers=0), 5)]])
def test_what_is_not_known_is_not_said(rounds: list[tuple[RoundReport, int]]) -> None:
    pace = pace_of(rounds)
    assert pace == Pace(rounds=len(rounds))
    assert pace.shares() == pace.groups() == ""


def test_a_clock_that_went_back_makes_no_rate() -> None:
    pace = pace_of([(report(1, own=1, peers=0, training=1.0), 5_000), (report(2, own=1, peers=0), 4_000)])
    assert (pace.training, pace.own_informative) == (1.0, None)
