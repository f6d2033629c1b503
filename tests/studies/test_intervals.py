"""Means over seeds with Student's interval."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.studies.intervals import interval, paired

shares = st.lists(st.floats(0, 1), min_size=2, max_size=12)


def test_a_textbook_interval() -> None:
    found = interval([0.8, 0.9, 1.0])
    assert found.mean == pytest.approx(0.9)
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found.low == pytest.approx(0.9 - half)
    assert found.high == pytest.approx(0.9 + half)
    assert found.in_points() == "90.0 ± 24.8"
    assert found.in_points(signed=True) == "+90.0 ± 24.8"


def test_one_seed_has_no_interval_and_none_is_an_error() -> None:
    assert interval([0.5]).in_points() == "50.0"
    with pytest.raises(ValueError, match="nothing was measured"):
        interval([])


@given(shares, st.floats(-1, 1))
def test_a_difference_that_all_seeds_share_is_certain(values: list[float], shift: float) -> None:
    found = paired([value + shift for value in values], values)
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert found.high - found.low == pytest.approx(0, abs=1e-6)


def test_pairs_must_be_of_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([0.1, 0.2], [0.1])
