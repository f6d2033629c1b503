"""The objective against worked cases, and one test for each way of getting it wrong."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftis_node.config import AdvantageNorm
from ftis_node.training.ftis import FtisConfig, LossInputs, ftis_loss, group_advantages

CASES = json.loads((Path(__file__).parent.parent / "data" / "ftis_cases.json").read_text())


def padded(rows: list[list[float]], width: int, filler: float) -> torch.Tensor:
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows], dtype=torch.float32)


def inputs_of(case: dict, *, filler: float = 0.0, chunks: bool = False) -> tuple[LossInputs, FtisConfig]:
    given = case["inputs"]
    rows = given["policy_logprobs"]
    width = max(map(len, rows)) + 1
    group_ids = torch.tensor(given["group_ids"])
    groups, counts = torch.unique(group_ids, return_counts=True)
    size = {int(group): int(count) for group, count in zip(groups, counts, strict=True)}
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    inputs = LossInputs(
        policy_logprobs=padded(rows, width, filler).requires_grad_(),
        old_logprobs=padded(given["old_logprobs"], width, filler),
        behavior_logprobs=padded(given["behavior_logprobs"], width, filler),
        loss_mask=mask,
        advantages=group_advantages(torch.tensor(given["rewards"]), group_ids, given["normalize"]),
        sequence_weights=torch.tensor([1.0 / (len(size) * size[g]) for g in given["group_ids"]]),
        chunk_ids=torch.arange(width).expand(len(rows), width) if chunks else None,
    )
    config = FtisConfig(
        method=given["method"],
        truncation=given["truncation"],
        kl_threshold=given["threshold"],
        kl_estimator=given["estimator"],
        clip_epsilon=given["epsilon"],
    )
    return inputs, config


def close(actual: float, expected: float) -> bool:
    return abs(actual - expected) <= 1e-5 * max(1.0, abs(expected))


@pytest.mark.parametrize("filler", [0.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_worked_case(number: int, filler: float) -> None:
    case = CASES[number]
    inputs, config = inputs_of(case, filler=filler)
    outputs = ftis_loss(inputs, config)
    outputs.loss.backward()
    gradient = inputs.policy_logprobs.grad
    expected = case["expected"]
    assert gradient is not None
    assert close(outputs.loss.item(), expected["loss"])
    assert outputs.keep_mask.tolist() == expected["keep"]
    for actual, wanted in zip(outputs.divergence.tolist(), expected["divergence"], strict=True):
        assert close(actual, wanted)
    for actual, wanted in zip(inputs.advantages.tolist(), expected["advantages"], strict=True):
        assert close(actual, wanted)
    for row, wanted_row in zip(gradient.tolist(), expected["grad"], strict=True):
        for actual, wanted in zip(row, wanted_row + [0.0] * (len(row) - len(wanted_row)), strict=True):
            assert close(actual, wanted)


@pytest.mark.parametrize("number", [n for n, case in enumerate(CASES) if not case["inputs"]["method"].endswith("vis")])
def test_one_chunk_per_token_is_bit_identical_to_the_plain_path(number: int) -> None:
    plain, config = inputs_of(CASES[number])
    chunked, _ = inputs_of(CASES[number], chunks=True)
    first, second = ftis_loss(plain, config), ftis_loss(chunked, config)
    first.loss.backward()
    second.loss.backward()
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(first.divergence, second.divergence)
    assert plain.policy_logprobs.grad is not None
    assert chunked.policy_logprobs.grad is not None
    assert torch.equal(plain.policy_logprobs.grad, chunked.policy_logprobs.grad)


def single(
    *,
    policy: list[float],
    old: list[float],
    behavior: list[float],
    advantage: float,
    chunk_ids: list[int] | None = None,
) -> LossInputs:
    return LossInputs(
        policy_logprobs=torch.tensor([policy], requires_grad=True),
        old_logprobs=torch.tensor([old]),
        behavior_logprobs=torch.tensor([behavior]),
        loss_mask=torch.ones(1, len(policy), dtype=torch.bool),
        advantages=torch.tensor([advantage]),
        sequence_weights=torch.ones(1),
        chunk_ids=None if chunk_ids is None else torch.tensor([chunk_ids]),
    )


def gradient_of(inputs: LossInputs, config: FtisConfig) -> list[float]:
    ftis_loss(inputs, config).loss.backward()
    assert inputs.policy_logprobs.grad is not None
    return inputs.policy_logprobs.grad[0].tolist()


def test_no_gradient_flows_through_the_weight() -> None:
    # With one update per batch old is policy.detach(); a weight that carried gradient would double it.
    policy = torch.tensor([[-1.0]], requires_grad=True)
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=policy,
        behavior_logprobs=torch.tensor([[-1.2]]),
        loss_mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.ones(1),
        sequence_weights=torch.ones(1),
    )
    assert gradient_of(inputs, FtisConfig()) == pytest.approx([-math.exp(0.2)])


def test_the_weight_is_truncated_above_and_not_below() -> None:
    above = single(policy=[-1.0], old=[-1.0], behavior=[-9.0], advantage=1.0)
    assert gradient_of(above, FtisConfig(truncation=2.0)) == pytest.approx([-2.0])
    below = single(policy=[-5.0], old=[-5.0], behavior=[-1.0], advantage=1.0)
    assert gradient_of(below, FtisConfig(truncation=2.0)) == pytest.approx([-math.exp(-4.0)])


@pytest.mark.parametrize(
    ("moved", "advantage", "flows"),
    [(0.5, 1.0, False), (0.5, -1.0, True), (-0.5, 1.0, True), (-0.5, -1.0, False)],
)
def test_the_clip_stops_moves_that_go_too_far_and_lets_the_way_back_open(
    moved: float, advantage: float, flows: bool
) -> None:
    inputs = single(policy=[-1.0 + moved], old=[-1.0], behavior=[-1.0], advantage=advantage)
    assert (gradient_of(inputs, FtisConfig(method="tis")) != [0.0]) is flows


def test_the_end_token_counts_when_pad_and_end_are_the_same_id() -> None:
    # The mask says what counts, never an id: three tokens, the last of which may be the end token.
    inputs = single(policy=[-1.0] * 3, old=[-1.0] * 3, behavior=[-1.0] * 3, advantage=3.0)
    assert gradient_of(inputs, FtisConfig()) == pytest.approx([-1.0, -1.0, -1.0])


@pytest.mark.parametrize("number", range(0, len(CASES), 5))
def test_the_sum_over_micro_batches_is_the_loss(number: int) -> None:
    inputs, config = inputs_of(CASES[number])
    whole = ftis_loss(inputs, config).loss.item()
    parts = 0.0
    for row in range(len(inputs.advantages)):
        part = slice(row, row + 1)
        parts += ftis_loss(
            LossInputs(
                inputs.policy_logprobs.detach()[part], inputs.old_logprobs[part], inputs.behavior_logprobs[part],
                inputs.loss_mask[part], inputs.advantages[part], inputs.sequence_weights[part],
            ),
            config,
        ).loss.item()  # fmt: skip
    assert parts == pytest.approx(whole, abs=1e-5 * max(1.0, abs(whole)))


def test_a_group_that_is_filtered_whole_gives_zero_and_not_nan() -> None:
    inputs = single(policy=[-1.0], old=[-100.0], behavior=[0.0], advantage=-1.0)
    outputs = ftis_loss(inputs, FtisConfig())
    outputs.loss.backward()
    assert outputs.loss.item() == 0.0
    assert outputs.keep_mask.tolist() == [False]
    assert outputs.metrics.importance_weight.item() == 0.0
    assert inputs.policy_logprobs.grad is not None
    assert inputs.policy_logprobs.grad.tolist() == [[0.0]]


def test_an_empty_batch_gives_zero() -> None:
    empty = torch.zeros(0, 3)
    inputs = LossInputs(
        empty.requires_grad_(), torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool),
        torch.zeros(0), torch.zeros(0),
    )  # fmt: skip
    assert ftis_loss(inputs, FtisConfig()).loss.item() == 0.0


def test_the_filter_spares_positive_advantages() -> None:
    inputs = single(policy=[-9.0], old=[-9.0], behavior=[-0.1], advantage=1.0)
    assert ftis_loss(inputs, FtisConfig()).keep_mask.tolist() == [True]


def test_equal_rewards_give_exactly_zero_advantage() -> None:
    rewards = torch.tensor([0.1] * 3 + [0.0, 1.0])
    advantages = group_advantages(rewards, torch.tensor([0, 0, 0, 1, 1]), "std")
    assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
    assert advantages[3:].tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)])


def test_a_chunk_shares_one_weight_from_its_sums() -> None:
    # Local tokens 0 and 1 are one chunk: o sums to -3, q (on the first token) is -2.5.
    config = FtisConfig(method="tis", truncation=10.0)
    inputs = single(
        policy=[-1.0, -2.0, -1.0],
        old=[-1.0, -2.0, -1.0],
        behavior=[-2.5, 99.0, -1.5],
        advantage=1.0,
        chunk_ids=[0, 0, 1],
    )
    weights = [-3 * g for g in gradient_of(inputs, config)]
    assert weights == pytest.approx([math.exp(-0.5), math.exp(-0.5), math.exp(0.5)])
    deltas = [0.5, -0.5]
    expected = sum(math.exp(d) - 1 - d for d in deltas) / 2
    assert ftis_loss(inputs, config).divergence.item() == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_chunk_divergence_is_that_of_summed_logprobs(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    value = st.floats(-4, 0, width=32)
    old = data.draw(st.lists(value, min_size=sum(lengths), max_size=sum(lengths)))
    sums = data.draw(st.lists(value, min_size=len(lengths), max_size=len(lengths)))
    ids = [chunk for chunk, length in enumerate(lengths) for _ in range(length)]
    behavior, at = [7.0] * len(old), 0
    deltas = []
    for length, chunk_sum in zip(lengths, sums, strict=True):
        behavior[at] = chunk_sum
        deltas.append(chunk_sum - sum(old[at : at + length]))
        at += length
    config = FtisConfig(kl_estimator="k1_sum", kl_threshold=1e9)
    outputs = ftis_loss(single(policy=old, old=old, behavior=behavior, advantage=1.0, chunk_ids=ids), config)
    assert outputs.divergence.item() == pytest.approx(sum(deltas), abs=1e-4)


def test_a_filter_without_a_number_is_refused() -> None:
    inputs = single(policy=[-1.0], old=[-1.0], behavior=[-1.0], advantage=-1.0)
    with pytest.raises(ValueError, match="kl_threshold = 'auto': the loss needs a number"):
        ftis_loss(inputs, FtisConfig(kl_threshold="auto"))
    assert ftis_loss(inputs, FtisConfig(method="tis", kl_threshold="auto")).keep_mask.tolist() == [True]


def test_vis_with_chunks_is_refused() -> None:
    inputs = single(policy=[-1.0], old=[-1.0], behavior=[-1.0], advantage=1.0, chunk_ids=[0])
    with pytest.raises(ValueError, match="foreign tokenizers"):
        ftis_loss(inputs, FtisConfig(method="f-vis"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=9), st.sampled_from(["std", "none"]))
def test_advantages_have_mean_zero(rewards: list[float], normalize: AdvantageNorm) -> None:
    advantages = group_advantages(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.long), normalize)
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-4)
    assert torch.isfinite(advantages).all()


def test_whole_number_rewards_give_advantages_with_fractions() -> None:
    advantages = group_advantages(torch.tensor([1, 0, 0]), torch.tensor([0, 0, 0]), "none")
    assert advantages.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
