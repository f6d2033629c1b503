"""Memory: budgets from figures, and work that is done again in smaller pieces, with the same result."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ftis_node.config import FtisConfig, LoraConfig, ModelConfig, TrainingConfig
from ftis_node.errors import ModelError, OutOfMemoryError
from ftis_node.memory import GIB, LARGEST_BUDGET, MemoryNeeds, available_bytes, is_out_of_memory, plan
from ftis_node.models import load_model, render_prompt
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.training.collate import TrainingGroup, TrainingSequence
from ftis_node.training.trainer import Trainer
from ftis_node.types import SamplingParams

NEEDS = MemoryNeeds(available=10 * GIB, fixed=4 * GIB, per_token=2**20, cache_per_token=2**16, enough=math.inf)


def test_the_budget_is_what_is_left_beside_gradients_and_optimizer() -> None:
    chosen = plan(NEEDS, longest=1024, micro_batch_tokens=None, decode_rows=64)
    assert chosen.micro_batch_tokens == 4 * 1024, "0.8 of 10 GiB less 4 GiB, at 1 MiB a token"
    assert chosen.decode_rows == 64
    assert "micro-batches of 4,096 tokens" in chosen.text


def test_more_memory_than_needed_makes_no_larger_batches() -> None:
    roomy = replace(NEEDS, available=1000 * GIB)
    assert plan(roomy, longest=1024, micro_batch_tokens=None, decode_rows=64).micro_batch_tokens == LARGEST_BUDGET


def test_a_cpu_takes_no_more_than_makes_it_faster() -> None:
    chosen = plan(replace(NEEDS, enough=2 * GIB), longest=1024, micro_batch_tokens=None, decode_rows=64)
    assert chosen.micro_batch_tokens == 2048


def test_what_the_party_configured_is_left_as_it_is() -> None:
    assert plan(NEEDS, longest=1024, micro_batch_tokens=2048, decode_rows=64).micro_batch_tokens == 2048


def test_fewer_completions_at_once_where_their_cache_does_not_fit() -> None:
    assert plan(NEEDS, longest=4000, micro_batch_tokens=None, decode_rows=64).decode_rows == 32


def test_what_can_not_fit_is_refused_with_what_to_change() -> None:
    with pytest.raises(
        ModelError, match=r"needs 12\.0 GiB .* one sequence of 8192 tokens \(4\.0 for gradients"
    ) as caught:
        plan(NEEDS, longest=8192, micro_batch_tokens=None, decode_rows=64)
    for advice in ("smaller model", "lora.rank", "gradient_checkpointing", "shorter completions"):
        assert advice in str(caught.value)


def test_what_torch_raises_is_told_apart() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**46)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes differ"))


def trainer(model: Any, budget: int | None = None, *, update_epochs: int = 1) -> Trainer:
    training = TrainingConfig(micro_batch_tokens=budget, update_epochs=update_epochs)
    return Trainer(model, training=training, ftis=FtisConfig(), learning_rate=1e-3, temperature=1.0, pad_id=0)


def small() -> Any:
    return load_model(ModelConfig(name="builtin:small"), LoraConfig(), seed=0).model


def groups() -> list[TrainingGroup]:
    """No two sequences share a prompt."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 200, (4, 4, 12), generator=generator).tolist()
    return [
        TrainingGroup(
            "own",
            tuple(
                TrainingSequence((49 + group, 43 + i), tuple(row), (-5.0,) * 12, float(i % 2))
                for i, row in enumerate(rows)
            ),
        )
        for group, rows in enumerate(ids)
    ]


def limit_rows(model: Any, most: int) -> list[int]:
    """A machine whose memory holds ``most`` rows at a time; returns the sizes that were tried."""
    tried = []

    def refuse(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        rows = len(kwargs["input_ids"])
        tried.append(rows)
        if rows > most:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    model.base_model.register_forward_pre_hook(refuse, with_kwargs=True)
    return tried


def test_a_step_that_runs_out_is_done_again_in_halves_and_loses_nothing() -> None:
    tight, roomy = small(), small()
    limited = trainer(tight)
    limited.micro_batch_tokens = 16 * 14
    tried = limit_rows(tight, 4)
    report, expected = limited.step(groups()), trainer(roomy).step(groups())
    assert tried[0] == 16
    assert limited.micro_batch_tokens == 4 * 14
    assert report.tokens_trained == expected.tokens_trained
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    for (name, one), other in zip(tight.named_parameters(), roomy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name
    tried.clear()
    limited.step(groups())
    assert max(tried) == 4, "the smaller size stays"


def test_an_update_that_runs_out_after_another_on_the_same_batch_is_done_again_alone() -> None:
    tight, roomy = small(), small()
    limited = trainer(tight, update_epochs=2)
    limited.micro_batch_tokens = 16 * 14
    # Memory gets short behind the first of the two updates, as when another process takes it.
    limited._optimizer.register_step_post_hook(lambda *_: limit_rows(tight, 4))
    report, expected = limited.step(groups()), trainer(roomy, update_epochs=2).step(groups())
    assert limited.micro_batch_tokens == 4 * 14
    assert report.loss == pytest.approx(expected.loss, abs=1e-6)
    for (name, one), other in zip(tight.named_parameters(), roomy.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6), name


def test_a_single_sequence_that_does_not_fit_is_said() -> None:
    model = small()
    limited = trainer(model)
    limit_rows(model, 0)
    with pytest.raises(OutOfMemoryError, match="one sequence of 14 tokens does not fit"):
        limited.step(groups())


def test_generation_that_runs_out_gives_the_same_completions_in_smaller_parts() -> None:
    loaded = load_model(ModelConfig(name="builtin:small"), LoraConfig(), seed=0)
    prompts = [render_prompt(loaded, f"{number}+2=") for number in range(1, 6)]

    def engine() -> TransformersEngine:
        return TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=64)

    settings: dict[str, Any] = {"count": 4, "sampling": SamplingParams(1.0), "max_tokens": 12, "seed": 5}
    expected = engine().generate(prompts, **settings)
    limit_rows(loaded.model, 4)
    limited = engine()
    actual = limited.generate(prompts, **settings)
    assert limited.decode_rows <= 5
    for ours, theirs in zip(actual.completions, expected.completions, strict=True):
        assert [c.token_ids for c in ours] == [c.token_ids for c in theirs]
    loaded.model.base_model._forward_pre_hooks.clear()
    limit_rows(loaded.model, 0)
    with pytest.raises(OutOfMemoryError, match="one completion of up to 12 tokens does not fit"):
        limited.generate(prompts, **settings)


def test_the_measurement_leaves_no_trace() -> None:
    measured, untouched = small(), small()
    needs = trainer(measured).needs(longest=64)
    assert 0 < needs.available <= available_bytes(torch.device("cpu")) * 2
    assert needs.fixed >= 12 * sum(p.numel() for p in measured.parameters())
    assert needs.cache_per_token > 0
    for (name, one), other in zip(measured.named_parameters(), untouched.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert one.grad is None
    assert not measured.training


@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_gradient_checkpointing_changes_no_gradient(checkpointing: Any) -> None:
    plain, other = small(), small()
    trainer(plain).step(groups())
    settings = TrainingConfig(gradient_checkpointing=checkpointing)
    chosen = Trainer(other, training=settings, ftis=FtisConfig(), learning_rate=1e-3, temperature=1.0, pad_id=0)
    chosen.step(groups())
    assert other.is_gradient_checkpointing == (checkpointing == "on")
    assert not other.training
    for (name, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name


def test_quantized_optimizers_need_a_gpu() -> None:
    with pytest.raises(ModelError, match=r"training.optimizer = 'adam8bit': needs a GPU; allowed here is adam"):
        Trainer(
            small(), training=TrainingConfig(optimizer="adam8bit"), ftis=FtisConfig(), learning_rate=1e-3,
            temperature=1.0, pad_id=0,
        )  # fmt: skip


def test_free_heap_does_not_hide_what_a_pass_takes() -> None:
    """As after loading a large model with the allocator that keeps freed memory."""
    code = (
        "from ftis_node.allocator import tune_malloc\n"
        "tune_malloc()\n"
        "import torch\n"
        "from tests.test_memory import small, trainer\n"
        "torch.ones(2**28)\n"
        "print(trainer(small()).needs(longest=512).per_token)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 1024


def test_gradients_are_not_counted_with_the_tokens() -> None:
    """With few tokens to measure by, they would make each of them look as large as the model."""
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=100_000, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
                    num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    )  # fmt: skip
    needs = trainer(model).needs(longest=32)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert 3 * weights <= needs.fixed < 6 * weights
    assert needs.per_token * 32 < weights / 2
