"""What it took until a target: rounds, own tokens and modelled time."""

import pytest

from ftis_node.simulation.figures import EvaluationLine, Fates, RoundLine, RunLine
from ftis_node.simulation.results import Results
from scripts.studies.how_many import Effort, Rates, effort, measured_rates, simulations
from scripts.studies.runs import Runs
from scripts.studies.setting import miniature

RATES = Rates(generation=100.0, training=50.0)


def round_of(number: int, *, generated: int, trained: int) -> RoundLine:
    return RoundLine(
        round=number, party="small", reward=0.5, rewards={}, generated_tokens=generated, generated_sequences=1,
        trained_tokens=trained, stepped=True, skipped_reason=None, loss=0.0, gradient_norm=1.0, importance_weight=1.0,
        truncated_share=0.0, clipped_share=0.0, own_logprob_mismatch=0.0, sequences={"own": Fates(trained=1)},
        divergence={}, rejected_batches={}, rejected_groups={}, unusable_groups={}, agreement={},
        seconds={"generating": generated / 100, "training": trained / 50},
    )  # fmt: skip


def evaluated(number: int, accuracy: float) -> EvaluationLine:
    return EvaluationLine(
        round=number, party="small", set="in", distribution="in", correct=0, total=1, accuracy=accuracy, low=0.0,
        high=1.0, completion_tokens=1.0, unfinished=0, seconds=0.0,
    )  # fmt: skip


def result(accuracies: dict[int, float]) -> Results:
    rounds = tuple(round_of(n, generated=100 * n, trained=50) for n in range(1, 5))
    return Results(
        RunLine.model_construct(), rounds, tuple(evaluated(n, value) for n, value in accuracies.items()), None
    )


def test_between_two_evaluations_the_accuracy_is_taken_as_a_line() -> None:
    found = effort(result({0: 0.2, 2: 0.6, 4: 1.0}), "small", ("in",), 0.7, RATES)
    assert found == Effort(rounds=2.5, own_tokens=100 + 200 + 150, seconds=4.5 + 2.5)


@pytest.mark.parametrize(("target", "rounds"), [(0.2, 0.0), (0.6, 2.0), (1.0, 4.0)])
def test_an_evaluation_that_reaches_it_counts(target: float, rounds: float) -> None:
    found = effort(result({0: 0.2, 2: 0.6, 4: 1.0}), "small", ("in",), target, RATES)
    assert found is not None
    assert found.rounds == rounds


def test_a_target_that_is_never_reached_has_no_effort() -> None:
    assert effort(result({0: 0.2, 2: 0.6}), "small", ("in",), 0.7, RATES) is None
    assert effort(result({0: 0.2, 2: 0.6}), "small", ("out",), 0.1, RATES) is None


def test_rates_are_those_of_the_rounds() -> None:
    spec = simulations(miniature())[0].spec
    rates = measured_rates(Runs(spec, (result({0: 0.2}),)), "small")
    assert rates == RATES
