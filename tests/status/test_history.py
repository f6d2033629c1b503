"""Series of rounds and traffic: averaged, bounded, and without what isn't known."""

import pytest

from ftis_node.status.history import POINTS, TrafficSample, history_of
from ftis_node.store.reports import RoundReport, Totals
from tests.status.nodes import report_of


def test_long_histories_are_averaged_from_the_newest_round_on() -> None:
    rounds = [(report_of(number, Totals(), peers=number > 400), 1000 * number) for number in range(1, 502)]
    history = history_of(rounds, [])
    assert history.rounds_per_point == 3
    assert len(history.rounds.round) == 167 <= POINTS
    assert history.rounds.round[-2:] == (498, 501)
    assert history.rounds.at_ms[-1] == 501_000
    newest = [report.own_reward for report, _ in rounds[-3:]]
    assert history.rounds.own_reward[-1] == pytest.approx(sum(value for value in newest if value is not None) / 3)
    assert history.rounds.peer_reward[0] is None
    assert sum(history.rounds.skipped_steps) == 10


def test_what_is_not_finite_is_left_out() -> None:
    broken = RoundReport(round=1, own_groups=1, peer_groups=0, stepped=False, own_reward=float("nan"))
    history = history_of([(broken, 1)], [])
    assert history.rounds.own_reward == (None,)
    assert "NaN" not in history.model_dump_json()


def test_traffic_is_the_rate_between_two_samples() -> None:
    samples = [TrafficSample(0, 0, 100), TrafficSample(10_000, 5_000, 100), TrafficSample(10_000, 6_000, 200)]
    traffic = history_of([], samples).traffic
    assert traffic.at_ms == (10_000,)
    assert traffic.bytes_in_per_second == (500.0,)
    assert traffic.bytes_out_per_second == (0.0,)
