"""One step: what moves the weights, what doesn't, and what is reported."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from ftis_node.config import FtisConfig, Method, TrainingConfig
from ftis_node.training.collate import TrainingGroup, TrainingSequence, collate
from ftis_node.training.ftis import LossInputs, ftis_loss, group_advantages
from ftis_node.training.logprobs import CompletionScorer
from ftis_node.training.step import disbelieved, lay_out
from ftis_node.training.threshold import FLOOR_PER_TOKEN
from ftis_node.training.trainer import Trainer, default_learning_rate

FAR_OFF = 9.0
METHODS: tuple[Method, ...] = ("f-tis", "tis")


def make_model(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, pad_token_id=0)  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    return model.to(dtype).eval()


def make_trainer(model: Any, *, ftis: FtisConfig | None = None, rate: float = 1e-3, **training) -> Trainer:
    return Trainer(
        model, training=TrainingConfig(**training), ftis=ftis or FtisConfig(), learning_rate=rate, temperature=1.0,
        pad_id=0,
    )  # fmt: skip


def group(model, *, origin: str = "own", rewards=(1.0, 0.0, 0.0, 1.0), seed: int = 0, shift=0.0) -> TrainingGroup:
    """A group with the model's own log-probs, moved by ``shift`` (one number, or one per sequence)."""
    generator = torch.Generator().manual_seed(seed)
    shifts = [shift] * len(rewards) if isinstance(shift, float) else list(shift)
    sequences = []
    for row, reward in enumerate(rewards):
        prompt = tuple(torch.randint(1, 40, (4,), generator=generator).tolist())
        completion = tuple(torch.randint(1, 40, (3 + row,), generator=generator).tolist())
        sequences.append(TrainingSequence(prompt, completion, (0.0,) * len(completion), reward))
    batch = collate(sequences, [[row] for row in range(len(sequences))], pad_id=0, device=torch.device("cpu"))
    with torch.no_grad():
        own = CompletionScorer(model, temperature=1.0)(batch)
    return TrainingGroup(
        origin,
        tuple(
            replace(s, behavior_logprobs=tuple((own[i, : len(s.completion_ids)] + shifts[i]).tolist()))
            for i, s in enumerate(sequences)
        ),
    )


def weights_of(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten().float().clone() for p in model.parameters()])


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_sketch_of_a_gradient_takes_no_step_and_does_not_depend_on_micro_batches() -> None:
    model = make_model()
    groups = [group(model, seed=seed) for seed in range(4)]
    before = weights_of(model)
    whole = make_trainer(model).gradient_sketch(groups)
    cut = make_trainer(model, micro_batch_tokens=16).gradient_sketch(groups)
    assert whole is not None
    assert cut is not None
    assert torch.allclose(whole, cut, atol=1e-6)
    assert torch.equal(weights_of(model), before)
    assert all(p.grad is None for p in model.parameters())
    other = make_trainer(model).gradient_sketch([group(model, seed=9, rewards=(0.0, 1.0, 1.0, 0.0))])
    assert other is not None
    assert not torch.allclose(whole, other, atol=1e-6)
    assert make_trainer(model).gradient_sketch([group(model, rewards=(1.0,) * 4)]) is None


def test_a_step_makes_better_answers_likelier() -> None:
    model = make_model()
    groups = [group(model, seed=seed) for seed in range(4)]

    def logprobs() -> torch.Tensor:
        sequences = [s for g in groups for s in g.sequences]
        batch = collate(sequences, [[row] for row in range(len(sequences))], pad_id=0, device=torch.device("cpu"))
        with torch.no_grad():
            return CompletionScorer(model, temperature=1.0)(batch).sum(dim=1)

    before = logprobs()
    report = make_trainer(model).step(groups)
    change = logprobs() - before
    rewards = torch.tensor([s.reward for g in groups for s in g.sequences])
    assert report.stepped
    assert report.own_logprob_mismatch is not None
    assert report.own_logprob_mismatch < 1e-5
    assert change[rewards == 1].mean() > 0 > change[rewards == 0].mean()


@pytest.mark.parametrize("budget", [16, 40, 16_384])
def test_micro_batches_do_not_change_the_gradient(budget: int) -> None:
    """The sum of the micro-batch losses is the loss: any budget gives the same weights."""
    model = make_model()
    groups = [
        group(model, seed=1),
        group(model, origin="aa", seed=2, shift=-0.7),
        group(model, rewards=(1.0, 1.0, 1.0, 1.0)),
    ]
    whole, parts = copy.deepcopy(model), copy.deepcopy(model)
    make_trainer(whole, micro_batch_tokens=10**6).step(groups)
    make_trainer(parts, micro_batch_tokens=budget).step(groups)
    torch.testing.assert_close(weights_of(whole), weights_of(parts), rtol=0, atol=2e-5)


def test_the_gradient_is_that_of_the_objective_over_all_groups() -> None:
    """Zero-advantage and filtered sequences count in N and G though they are never computed."""
    model = make_model()
    groups = [
        group(model, seed=1),
        group(model, origin="aa", seed=2, shift=(-0.5, FAR_OFF, 0.0, 0.3)),
        group(model, origin="bb", seed=3, rewards=(0.0, 0.0, 0.0, 0.0)),
    ]
    sequences = [s for g in groups for s in g.sequences]
    batch = collate(sequences, [[row] for row in range(len(sequences))], pad_id=0, device=torch.device("cpu"))
    policy = CompletionScorer(model, temperature=1.0)(batch)
    rewards = torch.tensor([s.reward for s in sequences])
    ids = torch.arange(3).repeat_interleave(4)
    outputs = ftis_loss(
        LossInputs(
            policy, policy.detach(), batch.behavior_logprobs, batch.loss_mask, group_advantages(rewards, ids, "std"),
            torch.full((12,), 1 / 12),
        ),
        FtisConfig(),
    )  # fmt: skip
    outputs.loss.backward()
    expected = gradient_of(model)
    norm = expected.norm().item()

    trained = make_model()
    # Plain descent through Adam's first step would hide the size: compare the gradients themselves.
    trainer = make_trainer(trained, max_gradient_norm=1e9)
    seen: dict[str, torch.Tensor] = {}
    trainer._optimizer.register_step_pre_hook(lambda *_: seen.update(gradient=gradient_of(trained)))
    report = trainer.step(groups)
    torch.testing.assert_close(seen["gradient"], expected, rtol=1e-4, atol=1e-6)
    assert report.gradient_norm == pytest.approx(norm, rel=1e-4)
    assert report.loss == pytest.approx(outputs.loss.item(), abs=1e-6)
    assert [g.filtered for g in report.groups] == [0, 1, 0]
    assert [g.zero_advantage for g in report.groups] == [0, 0, 4]
    assert [g.trained for g in report.groups] == [4, 3, 0]


def test_equal_rewards_take_no_step_and_say_so() -> None:
    model = make_model()
    before = weights_of(model)
    report = make_trainer(model).step([group(model, rewards=(1.0, 1.0, 1.0))])
    assert not report.stepped
    assert report.skipped_reason == "no sequence has an advantage"
    assert torch.equal(before, weights_of(model))
    assert report.own_logprob_mismatch is not None


def test_the_filter_spares_what_is_better_than_the_mean() -> None:
    """At any threshold something of a mixed group is left, so the step is taken."""
    model = make_model()
    peers = group(model, origin="aa", rewards=(1.0, 0.0), shift=FAR_OFF)
    before = weights_of(model)
    trainer = make_trainer(model, ftis=FtisConfig(kl_threshold=-1.0))
    report = trainer.step([peers])
    assert (report.groups[0].filtered, report.groups[0].trained) == (1, 1)  # the better one is spared
    assert report.stepped
    assert not torch.equal(before, weights_of(model))


@pytest.mark.parametrize("update_epochs", [1, 2])
def test_a_claim_that_is_too_low_is_not_believed_and_its_sequence_left_out(update_epochs: int) -> None:
    """``liar`` claims to have sampled two right answers with next to no probability, for the largest weight."""
    model = make_model()
    liar = group(model, origin="aa", seed=2, shift=(-25.0, -0.5, 0.0, -9.0))
    honest = [group(model, seed=1), group(model, origin="bb", seed=3, shift=-1.0)]
    silent = TrainingGroup(
        "aa",
        tuple(
            replace(s, completion_ids=(), behavior_logprobs=(), excluded="claim") if i in (0, 3) else s
            for i, s in enumerate(liar.sequences)
        ),
    )
    seen, expected = copy.deepcopy(model), copy.deepcopy(model)
    report = make_trainer(seen, update_epochs=update_epochs).step([*honest, liar])
    want = make_trainer(expected, update_epochs=update_epochs).step([*honest, silent])
    torch.testing.assert_close(weights_of(seen), weights_of(expected), rtol=0, atol=1e-6)
    assert report.groups[2].excluded == ("claim", "claim")
    assert (report.groups[2].trained, report.groups[2].filtered) == (2, 0)
    assert [s.fate for s in report.sequences[8:]] == ["excluded", "trained", "trained", "excluded"]
    assert [s.divergence is None for s in report.sequences[8:]] == [True, False, False, True]
    assert report.tokens_trained == want.tokens_trained
    assert report.importance_weight == pytest.approx(want.importance_weight, rel=1e-5)


def test_own_claims_need_no_belief_and_the_bound_can_be_taken_away() -> None:
    model = make_model()
    own = make_trainer(copy.deepcopy(model)).step([group(model, shift=-25.0)])
    assert own.groups[0].trained == 4
    far = group(model, origin="aa", shift=-25.0)
    believed = make_trainer(copy.deepcopy(model), claim_bound=math.inf).step([group(model, seed=1), far])
    assert believed.groups[1].trained == 4
    nothing = make_trainer(copy.deepcopy(model)).step([far])
    assert not nothing.stepped
    assert nothing.skipped_reason == "all sequences with an advantage are filtered or excluded"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(0.0, 3.0))
def test_true_claims_of_any_other_model_are_within_the_bound(seed: int, distance: float) -> None:
    """Whatever the two policies: completions sampled from q are hardly ever likelier under o by e^20."""
    generator = torch.Generator().manual_seed(seed)
    theirs = torch.randn(12, 30, generator=generator) * distance
    ours = theirs + torch.randn(12, 30, generator=generator) * distance
    ids = torch.multinomial(theirs.softmax(-1), 8, replacement=True, generator=generator).T  # [S, T]
    q, o = (
        logits.log_softmax(-1).expand(8, 12, 30).gather(2, ids.unsqueeze(2)).squeeze(2) for logits in (theirs, ours)
    )
    sequences = [
        TrainingSequence((1,), tuple(row.tolist()), tuple(claim.tolist()), float(i % 2))
        for i, (row, claim) in enumerate(zip(ids, q, strict=True))
    ]
    batch = lay_out([TrainingGroup("aa", tuple(sequences))], "std")
    micro = collate(sequences, [[row] for row in range(8)], pad_id=0, device=torch.device("cpu"))
    assert not disbelieved(batch, micro, o, 20.0).any()
    lies = replace(micro, behavior_logprobs=o - 2.0)  # 24 nats over 12 tokens
    assert disbelieved(batch, lies, o, 20.0).all()


def test_values_that_are_not_finite_skip_the_step_and_are_named() -> None:
    model = make_model()
    broken = group(model, origin="aa", seed=2)
    bad = replace(broken.sequences[1], behavior_logprobs=(float("nan"),) * len(broken.sequences[1].completion_ids))
    broken = replace(broken, sequences=(broken.sequences[0], bad, *broken.sequences[2:]))
    before = weights_of(model)
    trainer = make_trainer(model)
    report = trainer.step([group(model), broken])
    assert not report.stepped
    assert report.offending == ((1, 1),)
    assert report.skipped_reason is not None
    assert "not finite" in report.skipped_reason
    assert torch.equal(before, weights_of(model))
    assert all(p.grad is None for p in model.parameters())
    assert trainer.step([group(model)]).stepped  # and the next round goes on


def test_filtered_sequences_cost_no_backward_pass() -> None:
    model = make_model()
    peers = group(model, origin="aa", rewards=(1.0, 0.0, 0.0, 0.0, 0.0), shift=FAR_OFF)
    calls: list[int] = []

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.rows = len(x)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            calls.append(ctx.rows)
            return gradient

    model.model.norm.register_forward_hook(lambda module, inputs, output: Count.apply(output))
    report = make_trainer(model).step([peers])
    assert report.groups[0].filtered == 4
    assert sum(calls) == 1


def test_an_automatic_threshold_is_made_of_earlier_steps_and_survives_a_restart() -> None:
    model = make_model()
    ftis = FtisConfig(kl_threshold="auto", kl_quantile=0.5)
    trainer = make_trainer(model, ftis=ftis, rate=1e-9)
    rewards = (1.0,) * 2 + (0.0,) * 8
    near, far = (
        group(model, origin=o, seed=i, rewards=rewards, shift=d) for i, o, d in ((1, "aa", 1.0), (2, "bb", 6.0))
    )
    own = group(model, seed=3)
    first = trainer.step([own, near, far])
    assert first.kl_threshold == FLOOR_PER_TOKEN
    assert [g.filtered for g in first.groups] == [0, 8, 8], "all that is worse than its group, until peers are known"
    saved = copy.deepcopy(trainer.state_dict())
    second = trainer.step([own, near, far])
    assert second.kl_threshold == pytest.approx(math.expm1(1.0) - 1.0, rel=1e-3), "the closer of the two decides"
    assert [g.filtered for g in second.groups][::2] == [0, 8]
    assert second.groups[1].filtered < 8
    resumed = make_trainer(model, ftis=ftis)
    resumed.load_state_dict(saved)
    assert resumed.step([own]).kl_threshold == second.kl_threshold
    del saved["threshold"]  # as the version before wrote it
    resumed.load_state_dict(saved)
    assert resumed.step([own]).kl_threshold == FLOOR_PER_TOKEN


def test_the_threshold_in_force_is_reported() -> None:
    model = make_model()
    reported = [make_trainer(model, ftis=FtisConfig(method=m)).step([group(model)]).kl_threshold for m in METHODS]
    assert reported == [50.0, None]


def test_a_groups_weight_is_a_factor_on_its_part_of_the_gradient() -> None:
    model = make_model()
    mine, theirs = group(model, seed=1), group(model, origin="aa", seed=2, shift=-0.2)

    def sketch_of(weight: float) -> torch.Tensor:
        found = make_trainer(model).gradient_sketch([mine, replace(theirs, weight=weight)])
        assert found is not None
        return found

    none, half, whole = sketch_of(0.0), sketch_of(0.5), sketch_of(1.0)
    assert not torch.allclose(none, whole, atol=1e-5)
    torch.testing.assert_close(half, (none + whole) / 2, rtol=1e-4, atol=1e-6)
    alone = make_trainer(model).gradient_sketch([mine])
    assert alone is not None
    torch.testing.assert_close(none, alone / 2, rtol=1e-4, atol=1e-6)  # N counts both groups


def test_groups_without_weight_are_left_out_and_counted() -> None:
    model = make_model()
    before = weights_of(model)
    useless = replace(group(model, origin="aa", seed=2), weight=0.0)
    report = make_trainer(model).step([group(model, rewards=(1.0, 1.0)), useless])
    assert not report.stepped, "an optimizer would move on by its momentum"
    assert report.groups[1].excluded == ("no_weight",) * 4
    assert report.groups[1].mean_reward == 0.5
    assert {s.excluded for s in report.sequences if s.group == 1} == {"no_weight"}
    assert torch.equal(before, weights_of(model))


def test_several_epochs_keep_the_old_policy_of_the_start() -> None:
    model = make_model()
    once, twice = copy.deepcopy(model), copy.deepcopy(model)
    groups = [group(model, seed=seed) for seed in range(3)]
    make_trainer(once).step(groups)
    report = make_trainer(twice, update_epochs=3, learning_rate=None).step(groups)
    assert report.stepped
    assert report.clipped_share is not None
    assert not torch.equal(weights_of(once), weights_of(twice))


def test_a_later_update_that_is_not_finite_is_left_out_and_those_before_it_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make_model()
    groups = [group(model, seed=seed) for seed in range(3)]
    once = make_trainer(copy.deepcopy(model)).step(groups)
    trainer = make_trainer(model, update_epochs=3)
    before = weights_of(model)

    def diverge(*_: object) -> None:
        next(iter(model.parameters())).data.fill_(math.nan)

    trainer._optimizer.register_step_post_hook(diverge)
    report = trainer.step(groups)
    assert report.stepped, "whoever generates with these weights must be told"
    assert not torch.equal(before, weights_of(model))
    assert report.gradient_norm == pytest.approx(once.gradient_norm)
    assert report.loss == pytest.approx(once.loss)
    assert report.offending == ()
    assert "update 2 of 3 on one batch is left out, those before it stay: log-probs of 12" in caplog.text


def test_bfloat16_weights_have_float32_masters() -> None:
    """Steps far below the resolution of bfloat16 add up."""
    model = make_model(torch.bfloat16)
    trainer = make_trainer(model, rate=1e-5)
    groups = [group(model, seed=seed) for seed in range(2)]
    before = weights_of(model)
    for _ in range(3):
        trainer.step(groups)
    masters = trainer.state_dict()["masters"]
    assert masters
    moved = torch.cat([m.flatten() for m in masters]) - before
    assert 1e-6 < moved.abs().max().item() < 1e-4


def test_optimizer_state_survives_a_restart() -> None:
    model = make_model()
    trainer = make_trainer(model)
    groups = [group(model, seed=seed) for seed in range(2)]
    trainer.step(groups)
    copied = copy.deepcopy(model)
    resumed = make_trainer(copied)
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    trainer.step(groups)
    resumed.step(groups)
    assert torch.equal(weights_of(model), weights_of(copied))


def test_default_rates_are_the_papers() -> None:
    assert (default_learning_rate(lora=False), default_learning_rate(lora=True)) == (1e-6, 1e-4)
