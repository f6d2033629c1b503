"""Which groups have something to teach, and how much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.inbox.information import LEAST_GAIN, information

shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("reward", "spread", "own_rate", "expected"),
    [
        (0.5, 0.5, None, 0.5),
        (0.125, 0.33, 0.9, 0.33),  # unequal rewards teach whatever the own rate is
        (1.0, 0.0, None, 0.0),  # all right: no advantage without guidance
        (1.0, 0.0, 0.2, 0.4),
        (1.0, 0.0, 0.9, 0.0),  # as right as this party is itself
        (0.0, 0.0, 0.2, 0.0),  # all wrong teaches nobody
    ],
)
def test_by_hand(reward: float, spread: float, own_rate: float | None, expected: float) -> None:
    assert information(reward, spread, own_rate) == pytest.approx(expected)


@given(reward=shares, spread=st.floats(0, 0.5), own_rate=st.none() | shares)
def test_it_stays_within_its_bounds(reward: float, spread: float, own_rate: float | None) -> None:
    found = information(reward, spread, own_rate)
    assert 0 <= found <= 0.5
    if spread == 0 and found:
        assert own_rate is not None
        assert reward - own_rate >= LEAST_GAIN
