"""What an automatic threshold may be moved by, and what not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ftis_node.config import FtisConfig, KlEstimator
from ftis_node.round import MISMATCH_ALARM
from ftis_node.training.ftis import LossInputs, ftis_loss
from ftis_node.training.threshold import (
    FEWEST,
    FLOOR_PER_TOKEN,
    FORGOTTEN_STEPS,
    KEPT_AUTHORS,
    KEPT_PER_AUTHOR,
    History,
    floor_of,
    from_state,
    observe,
    threshold_of,
    to_state,
)

FLOOR = FLOOR_PER_TOKEN
Sent = list[list[float]]
"""Divergences by author."""

BRIEFLY = settings(max_examples=40, deadline=None)
honest_values = st.lists(st.floats(0.2, 1e4), min_size=FEWEST, max_size=20)
any_values = st.lists(st.floats(-1e12, 1e12), min_size=FEWEST, max_size=300)
quantiles = st.floats(0.05, 0.95)


def history_of(sent: Sent, *, steps: int = 1) -> History:
    """Every author's divergences in each of some steps; authors have names that sort in no special order."""
    history = History()
    for _ in range(steps):
        history = observe(history, {f"{(7 * i) % 100:02d}": values for i, values in enumerate(sent)})
    return history


def threshold(sent: Sent, quantile: float = 0.5) -> float:
    return threshold_of(history_of(sent), quantile=quantile, floor=FLOOR)


@BRIEFLY
@given(st.lists(honest_values, min_size=2, max_size=6), any_values, quantiles)
def test_one_hostile_author_among_three_or_more_stays_within_the_honest_ones(
    honest: Sent, hostile: list[float], quantile: float
) -> None:
    alone = [threshold([values], quantile) for values in honest]
    assert min(alone) <= threshold([*honest, hostile], quantile) <= max(alone)


@BRIEFLY
@given(st.lists(honest_values, min_size=1, max_size=5), st.lists(any_values, min_size=1, max_size=5), quantiles)
def test_up_to_half_of_all_authors_cannot_raise_it_and_fewer_cannot_lower_it(
    honest: Sent, hostile: Sent, quantile: float
) -> None:
    assume(len(hostile) <= len(honest))
    alone = [threshold([values], quantile) for values in honest]
    found = threshold([*honest, *hostile], quantile)
    assert found <= max(alone)
    if len(hostile) < len(honest):
        assert found >= min(alone)


@BRIEFLY
@given(honest_values, honest_values, honest_values, quantiles)
def test_who_sends_more_counts_no_more(one: list[float], other: list[float], third: list[float], q: float) -> None:
    # An author's own quantile is the same over twice the same values, up to where it lies between two of them.
    busy = [value for value in third for _ in range(2)]
    assume(len(busy) <= KEPT_PER_AUTHOR)
    alone = [threshold([values], q) for values in (one, other, busy)]
    assert threshold([one, other, busy], q) == sorted(alone)[1]


@BRIEFLY
@given(st.lists(honest_values, min_size=1, max_size=5), quantiles, st.floats(2, 1e3))
def test_it_scales_with_what_it_is_made_of(sent: Sent, quantile: float, factor: float) -> None:
    scaled = [[factor * value for value in values] for values in sent]
    assert threshold(scaled, quantile) == pytest.approx(factor * threshold(sent, quantile), rel=1e-9)


@BRIEFLY
@given(st.lists(honest_values, min_size=1, max_size=5), quantiles, st.randoms())
def test_neither_the_order_of_samples_nor_that_of_authors_counts(sent: Sent, quantile: float, random) -> None:
    shuffled = [random.sample(values, len(values)) for values in sent]
    names = [str(i) for i in range(len(sent))]
    order = random.sample(range(len(sent)), len(sent))
    one = observe(History(), dict(zip(names, sent, strict=True)))
    other = observe(History(), {names[i]: shuffled[i] for i in order})
    found = [threshold_of(history, quantile=quantile, floor=FLOOR) for history in (one, other)]
    assert found[0] == found[1]


@BRIEFLY
@given(st.lists(honest_values, min_size=1, max_size=5), st.floats(0.05, 0.5), st.floats(0.5, 0.95))
def test_a_higher_quantile_gives_no_lower_threshold(sent: Sent, low: float, high: float) -> None:
    assert FLOOR <= threshold(sent, low) <= threshold(sent, high) * (1 + 1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 300), st.integers(0, 200), max_size=150), max_size=5))
def test_what_is_kept_is_bounded_and_survives_a_checkpoint(rounds: list[dict[int, int]]) -> None:
    history = History()
    for sizes in rounds:
        history = observe(history, {f"{name:03d}": [float(i) for i in range(size)] for name, size in sizes.items()})
        assert len(history.authors) <= KEPT_AUTHORS
        for author in history.authors:
            assert 0 < len(author.values) <= KEPT_PER_AUTHOR
            assert history.step - author.step < FORGOTTEN_STEPS
    assert from_state(to_state(history)) == history


def test_the_newest_are_kept_and_who_is_gone_is_forgotten() -> None:
    history = history_of([[1.0] * KEPT_PER_AUTHOR, [9.0] * FEWEST])
    history = observe(history, {"00": [5.0] * KEPT_PER_AUTHOR})
    assert history.authors[0].values == (5.0,) * KEPT_PER_AUTHOR
    for _ in range(FORGOTTEN_STEPS):
        history = observe(history, {})
    assert history.authors == ()


def test_it_is_cautious_until_an_author_is_known() -> None:
    assert threshold([]) == FLOOR
    assert threshold([[100.0] * (FEWEST - 1)]) == FLOOR
    assert threshold([[100.0] * FEWEST]) == 100.0
    assert threshold([[100.0] * FEWEST, [1e9] * (FEWEST - 1)]) == 100.0


@pytest.mark.parametrize("estimator", ["k3", "k3_forward", "k1_mean", "k1_sum"])
def test_own_samples_pass_the_floor_under_every_estimator(estimator: KlEstimator) -> None:
    """Engine and trainer apart by twice what the alarm is for, on every token and in one direction."""
    own = torch.full((1, 200), -1.0)
    inputs = LossInputs(own, own, own + 1.99 * MISMATCH_ALARM, torch.ones(1, 200, dtype=torch.bool),
                        torch.tensor([-1.0]), torch.ones(1))  # fmt: skip
    config = FtisConfig(kl_estimator=estimator, kl_threshold=floor_of(estimator, 200))
    assert ftis_loss(inputs, config).keep_mask.tolist() == [True]


def test_a_checkpoint_of_a_version_before_has_none() -> None:
    assert from_state(None) == History()
