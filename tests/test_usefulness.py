"""Factors from measurements: what is known, what is noise, and what they are bounded by."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.store.authors import OWN_ORIGIN, Measurement
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.usefulness import FEWEST, NEWEST, weight_factors, weighted

PEER = "aa" * 32


def measured(pairs: list[tuple[float, float]], *, trained: int = 16, own: int = 16) -> list[Measurement]:
    """Of one peer and the own samples, (theirs, own) round by round."""
    theirs = [Measurement(PEER, number, x, trained) for number, (x, _) in enumerate(pairs)]
    return [*theirs, *(Measurement(OWN_ORIGIN, number, y, own) for number, (_, y) in enumerate(pairs))]


def factor(pairs: list[tuple[float, float]], *, trained: int = 16, own: int = 16) -> float:
    return weight_factors(measured(pairs, trained=trained, own=own)).get(PEER, 1.0)


def drawn(mean: float, own: float, noise: float, count: int, seed: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    return [(rng.gauss(mean, noise), rng.gauss(own, noise)) for _ in range(count)]


def mean_factor(mean: float, own: float, noise: float, count: int) -> float:
    return sum(factor(drawn(mean, own, noise, count, seed)) for seed in range(300)) / 300


BRIEFLY = settings(max_examples=40, deadline=None)
cosines = st.floats(-1, 1)
counts = st.integers(0, 500)


@BRIEFLY
@given(st.lists(st.tuples(cosines, cosines), max_size=60), counts, counts)
def test_it_is_within_0_and_1(pairs: list[tuple[float, float]], trained: int, own: int) -> None:
    assert 0.0 <= factor(pairs, trained=trained, own=own) <= 1.0


@BRIEFLY
@given(st.lists(st.tuples(cosines, cosines), min_size=FEWEST, max_size=30), st.randoms())
def test_the_order_in_which_measurements_are_read_does_not_count(pairs: list[tuple[float, float]], rng) -> None:
    rows = measured(pairs)
    assert weight_factors(rows) == weight_factors(rng.sample(rows, len(rows)))


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1.0), (1.5, 1.0), (0.5, 0.5), (0.0, 0.0), (-1.0, 0.0)])
def test_without_noise_it_is_the_share_of_the_own_agreement(share: float, expected: float) -> None:
    pairs = [(share * y, y) for y in (0.1, 0.3, 0.2, 0.25, 0.15)]
    assert factor(pairs) == pytest.approx(expected)


def test_few_measurements_say_nothing() -> None:
    harmful = [(-0.5, 0.5)] * NEWEST
    assert weight_factors(measured(harmful[: FEWEST - 1])) == {}
    assert weight_factors(measured(harmful[:FEWEST])) == {PEER: 0.0}
    assert weight_factors([]) == {}


def test_without_a_yardstick_nobody_is_blamed() -> None:
    assert factor([(-0.5, -0.1)] * 10) == 1.0
    only_theirs = [Measurement(PEER, number, -0.5, 16) for number in range(10)]
    assert weight_factors(only_theirs) == {}


def test_the_more_is_measured_the_clearer_it_is() -> None:
    """Noise as large as the own agreement itself: a useful author keeps its weight, a useless one loses it."""
    useless = [mean_factor(0.0, 0.1, 0.1, count) for count in (FEWEST, 8, NEWEST)]
    harmful = [mean_factor(-0.1, 0.1, 0.1, count) for count in (FEWEST, 8, NEWEST)]
    useful = [mean_factor(0.1, 0.1, 0.1, count) for count in (FEWEST, 8, NEWEST)]
    assert useless == sorted(useless, reverse=True)
    assert harmful == sorted(harmful, reverse=True)
    assert useless[-1] < 0.2
    assert harmful[-1] < 0.02
    assert all(value > 0.75 for value in useful)
    assert useful[-1] > 0.85


def test_where_noise_drowns_all_the_weight_stays_near_1() -> None:
    assert mean_factor(0.0, 0.0, 0.3, NEWEST) > 0.7


def test_old_measurements_are_forgotten() -> None:
    assert factor([(-0.2, 0.2)] * NEWEST + [(0.2, 0.2)] * NEWEST) == pytest.approx(1.0)
    assert factor([(0.2, 0.2)] * 900 + [(-0.2, 0.2)] * NEWEST) == 0.0


def test_who_gives_little_is_not_taken_for_useless() -> None:
    """A gradient of a quarter of the sequences has about half the cosine where noise is most of it."""
    pairs = [(0.05, 0.1)] * 8
    assert factor(pairs, trained=16, own=16) == pytest.approx(0.5)
    assert factor(pairs, trained=4, own=16) == pytest.approx(1.0)
    assert factor([(0.01, 0.1)] * 8, trained=1, own=400) == pytest.approx(0.2), "the correction is bounded"
    assert factor([(0.0, 0.1)] * 8, trained=1, own=400) == 0.0
    assert factor(pairs, trained=0, own=16) == pytest.approx(0.5), "of a round in which it weighed nothing"


def test_groups_get_their_authors_factor_and_own_ones_none() -> None:
    sequence = TrainingSequence((1,), (2,), (-0.5,), 1.0)
    groups = [TrainingGroup(origin, (sequence,)) for origin in (OWN_ORIGIN, PEER, "bb" * 32)]
    assert [group.weight for group in weighted(groups, {PEER: 0.25})] == [1.0, 0.25, 1.0]
