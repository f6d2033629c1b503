"""The interval of an agreement against values computed elsewhere, and what may be claimed of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ftis_node.status.agreement import FEWEST, Agreement, agreement_of


def measured(values: list[float]) -> Agreement:
    return agreement_of(len(values), sum(values), sum(value * value for value in values))


@pytest.mark.parametrize("count", [4, 5, 12, 31, 32, 200])
def test_the_interval_is_students(count: int) -> None:
    values = list(np.random.default_rng(count).normal(0.1, 0.2, count))
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
    found = measured(values)
    assert found.low == pytest.approx(low, abs=2e-4)
    assert found.high == pytest.approx(high, abs=2e-4)


def test_a_verdict_needs_the_whole_interval_on_one_side() -> None:
    assert measured([0.2, 0.25, 0.3, 0.22]).verdict == "helps"
    assert measured([-0.2, -0.25, -0.3, -0.22]).verdict == "harms"
    assert measured([0.5, -0.4, 0.3, -0.1]).verdict == "unknown"


def test_few_measurements_claim_nothing() -> None:
    assert measured([]).mean is None
    few = measured([0.9] * (FEWEST - 1))
    assert few.mean == pytest.approx(0.9)
    assert few.low is None
    assert few.verdict == "unknown"
