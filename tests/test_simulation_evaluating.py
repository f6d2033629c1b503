"""A start that several runs have in common is evaluated once, and never taken for another."""

from pathlib import Path

import pytest

from ftis_node.evaluate import greedy_accuracy
from ftis_node.simulation import evaluating
from ftis_node.simulation.evaluating import Evaluator
from ftis_node.simulation.results import read_results
from ftis_node.simulation.runner import prepare, simulate
from ftis_node.simulation.specification import SimulationSpec
from tests.simulations import make_spec, numbers, party

SUMS = {"name": "sums", "task": "addition:test", "parameters": {"terms": 3, "largest": 19}, "items": 20}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of items of every evaluation that was really made."""
    found: list[int] = []

    def counted(*args: object, limit: int, **rest: object) -> object:
        found.append(limit)
        return greedy_accuracy(*args, limit=limit, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluating, "greedy_accuracy", counted)
    return found


def test_parties_and_seeds_with_the_same_start_are_evaluated_once_before_the_first_round(
    asked: list[int], tmp_path: Path
) -> None:
    spec = make_spec(
        party("ann"), party("bob"), party("cid", node={"model": {"name": "builtin:large"}}), rounds=1,
        evaluations=[SUMS],
    )  # fmt: skip
    study, evaluator = prepare(spec), Evaluator()
    for seed in (0, 1):
        together = simulate(study, seed, tmp_path / "together", evaluator=evaluator)
        by_itself = simulate(study, seed, tmp_path / "by-itself")
        assert together is not None
        assert by_itself is not None
        assert numbers(together) == numbers(by_itself)
    # At the end all three; at the start two models, in the first run with each evaluator.
    assert len(asked) == (2 + 3 + 3) + 2 * (2 + 3)


def test_what_differs_in_anything_that_counts_is_evaluated_by_itself(asked: list[int], tmp_path: Path) -> None:
    evaluator = Evaluator()
    others = {
        "items": make_spec(party("ann"), rounds=1, evaluations=[{**SUMS, "items": 10}]),
        "longest": make_spec(party("ann"), rounds=1, evaluations=[{**SUMS, "max_tokens": 1}]),
        "numbers": make_spec(
            party("ann"), rounds=1, evaluations=[{**SUMS, "parameters": {"terms": 2, "largest": 39}}]
        ),
        "model": make_spec(
            party("ann", node={"model": {"name": "builtin:large"}}), rounds=1, evaluations=[SUMS]
        ),
    }  # fmt: skip
    first = _start(make_spec(party("ann"), rounds=1, evaluations=[SUMS]), tmp_path / "first", evaluator)
    for name, spec in others.items():
        assert _start(spec, tmp_path / name, evaluator) == _start(spec, tmp_path / f"{name}-by-itself", Evaluator())
    assert _start(make_spec(party("dan"), rounds=1, evaluations=[SUMS]), tmp_path / "dan", evaluator) == first
    assert len(asked) == 2 + 2 * 2 * len(others) + 1


def _start(spec: SimulationSpec, folder: Path, evaluator: Evaluator) -> tuple[int, int, float]:
    path = simulate(prepare(spec), 0, folder, evaluator=evaluator)
    assert path is not None
    line = read_results(path).evaluations[0]
    assert line.party == spec.parties[0].name
    return line.correct, line.total, line.completion_tokens
