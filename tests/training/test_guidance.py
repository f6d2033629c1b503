"""What guidance changes, by hand; and what it leaves as it is, to the bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.config import FtisConfig
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.ftis import LossInputs, ftis_loss
from ftis_node.training.guidance import FEWEST, WINDOW, OwnRates, from_state, guided, observe, to_state
from ftis_node.training.step import lay_out

LOG = math.log


def loss_and_gradient(floors: list[float] | None, config: FtisConfig, advantages: list[float]) -> tuple[float, list]:
    """Two tokens each: the own model gives the first of each sequence a hundredth of what its author did."""
    policy = torch.tensor([[LOG(0.009), LOG(0.5)]] * len(advantages), dtype=torch.float64, requires_grad=True)
    behavior = torch.tensor([[LOG(0.9), LOG(0.5)]] * len(advantages), dtype=torch.float64)
    outputs = ftis_loss(
        LossInputs(
            policy_logprobs=policy,
            old_logprobs=policy.detach(),
            behavior_logprobs=behavior,
            loss_mask=torch.ones_like(behavior, dtype=torch.bool),
            advantages=torch.tensor(advantages, dtype=torch.float64),
            sequence_weights=torch.full((len(advantages),), 1.0 / len(advantages), dtype=torch.float64),
            weight_floors=None if floors is None else torch.tensor(floors, dtype=torch.float64),
        ),
        config,
    )
    outputs.loss.backward()
    assert policy.grad is not None
    return outputs.loss.item(), policy.grad.tolist()


GUIDED = FtisConfig(guidance="own-rate")


@pytest.mark.parametrize(
    ("floor", "advantage", "loss", "gradient"),
    [
        # w = 0.01 and 1; -(1/1) (1/2) (0.01 + 1) 0.8
        (0.0, 0.8, -0.404, [-0.004, -0.4]),
        # the first token's weight is lifted to 0.5: -(1/2) (0.5 + 1) 0.8
        (0.5, 0.8, -0.6, [-0.2, -0.4]),
        # a floor is no ceiling, and may be above 1: both tokens are lifted
        (1.5, 0.8, -1.2, [-0.6, -0.6]),
        # what is worse than its group is never lifted: -(1/2) (0.01 + 1) (-0.8)
        (0.5, -0.8, 0.404, [0.004, 0.4]),
        (0.5, 0.0, 0.0, [0.0, 0.0]),
    ],
)
def test_worked_case(floor: float, advantage: float, loss: float, gradient: list[float]) -> None:
    found, found_gradient = loss_and_gradient([floor], GUIDED, [advantage])
    assert found == pytest.approx(loss, abs=1e-12)
    assert found_gradient[0] == pytest.approx(gradient, abs=1e-12)


def test_off_takes_no_notice_of_floors_and_a_filtered_sequence_stays_out() -> None:
    off = FtisConfig(guidance="off")
    assert loss_and_gradient([0.7, 0.7], off, [1.0, -1.0]) == loss_and_gradient(None, off, [1.0, -1.0])
    strict = FtisConfig(guidance="own-rate", kl_threshold=0.1)
    assert loss_and_gradient([0.7], strict, [-1.0])[0] == 0.0


@pytest.mark.parametrize(
    ("rewards", "advantages", "own_rate", "expected", "floors"),
    [
        # A peer that is always right, where own completions are in one of five.
        ([1, 1, 1], [0.0, 0.0, 0.0], 0.2, [0.8, 0.8, 0.8], [0.4, 0.4, 0.4]),
        # Where the own model succeeds next to nothing is added.
        ([1, 1], [0.0, 0.0], 0.97, [0.03, 0.03], [0.015, 0.015]),
        # Right ones keep an advantage that is larger; wrong ones are left alone.
        ([1, 0], [0.71, -0.71], 0.5, [0.71, -0.71], [0.25, 0.0]),
        # Better than own ones but worse than its group: not lifted.
        ([0.5, 1], [-0.71, 0.71], 0.1, [-0.71, 0.9], [0.0, 0.45]),
        # A peer that is worse than this party teaches as without guidance.
        ([0.2, 0.4], [-0.71, 0.71], 0.6, [-0.71, 0.71], [0.0, 0.0]),
    ],
)
def test_gains_by_hand(
    rewards: list[float], advantages: list[float], own_rate: float, expected: list[float], floors: list[float]
) -> None:
    found, bounds = guided(torch.tensor(advantages), torch.tensor(rewards), [own_rate] * len(rewards), floor=0.5)
    assert bounds is not None
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert bounds.tolist() == pytest.approx(floors, abs=1e-6)


def group(rewards: list[float], own_rate: float | None, origin: str = "ab") -> TrainingGroup:
    sequences = tuple(TrainingSequence((1,), (2, 3), (-0.5, -0.5), reward) for reward in rewards)
    return TrainingGroup(origin, sequences, own_rate=own_rate)


@settings(deadline=None)
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=8),
    own_rate=st.none() | st.floats(0, 1),
)
def test_own_groups_and_those_without_a_rate_are_as_they_were(rewards: list[float], own_rate: float | None) -> None:
    own, peers = group(rewards, None, "own"), group(rewards, own_rate)
    without, batch = lay_out([own, group(rewards, None)], "std"), lay_out([own, peers], "std", floor=1.0)
    size = len(rewards)
    assert without.floors is None
    assert torch.equal(batch.advantages[:size], without.advantages[:size])
    if own_rate is None:
        assert batch.floors is None
        assert torch.equal(batch.advantages, without.advantages)
        return
    assert batch.floors is not None
    assert torch.equal(batch.floors[:size], torch.zeros(size)), "own groups are on-policy: nothing to lift"
    assert (batch.advantages >= without.advantages).all()
    assert ((batch.floors >= 0) & (batch.floors <= 1 - own_rate + 1e-6)).all(), "no claim moves it, only the own rate"


def test_an_own_rate_is_known_after_some_groups_follows_the_model_and_survives_a_restart() -> None:
    rates = OwnRates()
    for _ in range(FEWEST - 1):
        rates = observe(rates, "sums", 1.0)
    assert rates.of("sums") is None
    rates = observe(rates, "sums", 0.0)
    assert rates.of("sums") == pytest.approx((FEWEST - 1) / FEWEST)
    assert rates.of("differences") is None
    for _ in range(4 * WINDOW):
        rates = observe(rates, "sums", 0.25)
    assert rates.of("sums") == pytest.approx(0.25, abs=0.02)
    assert from_state(to_state(rates)) == rates
    assert from_state(None) == OwnRates()
