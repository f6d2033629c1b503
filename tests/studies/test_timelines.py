"""Accuracy over simulated time: where a target is reached, and what other costs would have come to."""

from pathlib import Path

import pytest

from ftis_node.simulation.pace import Costs
from ftis_node.simulation.results import read_results
from ftis_node.simulation.runner import prepare, simulate
from scripts.studies.timelines import Point, accuracy_at, at_other_costs, by_time, by_tokens, reached, timeline
from tests.simulations import make_spec, party

POINTS = [Point(0.0, 0.0, 0.2), Point(10.0, 100.0, 0.6), Point(30.0, 140.0, 0.5), Point(40.0, 200.0, 1.0)]


@pytest.mark.parametrize(
    ("target", "time", "tokens"),
    [(0.1, 0.0, 0.0), (0.2, 0.0, 0.0), (0.4, 5.0, 50.0), (0.6, 10.0, 100.0), (0.75, 35.0, 170.0)],
)
def test_a_target_is_reached_between_two_evaluations(target: float, time: float, tokens: float) -> None:
    assert reached(POINTS, target, by_time) == pytest.approx(time)
    assert reached(POINTS, target, by_tokens) == pytest.approx(tokens)


def test_what_is_never_reached_is_none() -> None:
    assert reached(POINTS[:3], 0.61, by_time) is None


@pytest.mark.parametrize(("time", "accuracy"), [(0.0, 0.2), (5.0, 0.4), (10.0, 0.6), (20.0, 0.55), (50.0, 1.0)])
def test_between_evaluations_the_accuracy_is_taken_as_a_line(time: float, accuracy: float) -> None:
    assert accuracy_at(POINTS, time) == pytest.approx(accuracy)


def test_alone_other_costs_move_the_ends_of_rounds_and_nothing_else(tmp_path: Path) -> None:
    """What is worked out is what a run with these costs gives."""
    sums = {"name": "sums", "task": "addition:test", "parameters": {"terms": 3, "largest": 19}, "items": 20}
    run = {
        "tasks": [{"name": "addition", "parameters": {"terms": 3, "largest": 19}}],
        "group_size": 4,
        "limits": {"prompt_tokens": 64, "completion_tokens": 48},
        "assignment": {"window_seconds": 604_800, "quota": 10**6},
    }
    dear = Costs(generation=30.0, training=3.0)
    cheap_run, dear_run = (
        simulate(
            prepare(
                make_spec(
                    party("ann", costs=costs.model_dump()), name=name, pace="costs", collaboration="alone", rounds=3,
                    eval_every=1, evaluations=[sums], run=run,
                )
            ),
            0, tmp_path,
        )
        for name, costs in (("cheap", Costs()), ("dear", dear))
    )  # fmt: skip
    assert cheap_run is not None
    assert dear_run is not None
    cheap = read_results(cheap_run)
    found = at_other_costs(timeline(cheap, "ann", "sums"), cheap, "ann", dear)
    wanted = timeline(read_results(dear_run), "ann", "sums")
    assert [point.time for point in found] == pytest.approx([point.time for point in wanted])
    assert [point.accuracy for point in found] == [point.accuracy for point in wanted]
