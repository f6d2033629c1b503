"""The budget: steady in the long run, patient with a single large amount."""

from hypothesis import given
from hypothesis import strategies as st

from ftis_node.swarm.budget import Budget


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), min_size=1, max_size=100))
def test_who_waits_as_told_keeps_to_the_rate(spending: list[tuple[float, int]]) -> None:
    rate, burst = 1000.0, 3.0
    budget = Budget(rate, burst_seconds=burst)
    start = now = 1.0
    for pause, amount in spending:
        now += pause
        now += budget.spend(amount, now)
    total = sum(amount for _, amount in spending)
    assert total <= rate * (now - start + burst) + 1e-6


def test_nothing_waits_within_the_burst() -> None:
    budget = Budget(100.0, burst_seconds=2.0)
    assert budget.spend(200, 1.0) == 0
    assert budget.spend(50, 1.0) == 0.5
    assert budget.spend(0, 1.5) == 0
