"""Log-probs in chunks are those of the full logits, values and gradients."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from ftis_node.errors import ModelError
from ftis_node.training import logprobs
from ftis_node.training.collate import MicroBatch, TrainingSequence, collate
from ftis_node.training.logprobs import CompletionScorer

SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}  # fmt: skip


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL)).eval()


def batch_of(count: int = 5) -> MicroBatch:
    generator = torch.Generator().manual_seed(1)
    sequences = []
    for row in range(count):
        prompt = torch.randint(1, 50, (2 + row,), generator=generator).tolist()
        completion = torch.randint(1, 50, (3 + 2 * row,), generator=generator).tolist()
        sequences.append(TrainingSequence(tuple(prompt), tuple(completion), (-1.0,) * len(completion), 0.0))
    return collate(sequences, [[row] for row in range(count)], pad_id=0, device=torch.device("cpu"))


def plain(model: torch.nn.Module, batch: MicroBatch, temperature: float) -> torch.Tensor:
    """The same by the book: all logits, log-softmax, gather."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits.float()
    every = torch.log_softmax(logits / temperature, dim=-1)
    rows = torch.arange(len(batch.input_ids)).unsqueeze(1)
    return every[rows, batch.gather, batch.targets].masked_fill(~batch.loss_mask, 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [50, 7 * 50, 10**6])
def test_values_and_gradients_are_those_of_full_logits(
    temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", chunk)
    model: Any = llama()
    batch = batch_of()
    weights = torch.randn(batch.loss_mask.shape, generator=torch.Generator().manual_seed(2))
    gradients = []
    for compute in (CompletionScorer(model, temperature=temperature), lambda b: plain(model, b, temperature)):
        model.zero_grad()
        values = compute(batch)
        (values * weights).sum().backward()
        gradients.append((values.detach(), [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(gradients[0][0], gradients[1][0], rtol=1e-4, atol=1e-5)
    for chunked, full in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(chunked, full, rtol=1e-3, atol=1e-5)


FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2, tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64)),
    "gemma2, soft-capped": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=3.0)),
    "granite, scaled": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=4.0)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_peculiar_heads(family: str) -> None:
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    batch = batch_of()
    with torch.no_grad():
        torch.testing.assert_close(
            CompletionScorer(model, temperature=0.8)(batch), plain(model, batch, 0.8), rtol=1e-4, atol=1e-4
        )


def test_a_head_that_does_something_unknown_is_refused_and_never_scored_wrongly() -> None:
    class Odd(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits**3
            return output

    torch.manual_seed(0)
    with pytest.raises(ModelError, match="differ from the model's own"):
        CompletionScorer(Odd(LlamaConfig(**SMALL, initializer_range=1.0)).eval(), temperature=1.0)


def test_nothing_of_the_size_of_all_logits_is_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 4 * 50)
    model, batch = llama(), batch_of()
    scorer = CompletionScorer(model, temperature=1.0)
    kept: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        values = scorer(batch)
    values.sum().backward()
    weight = model.lm_head.weight.shape
    assert not [shape for shape in kept if 50 in shape and shape != weight]


def test_a_soft_capped_head_goes_through_the_head_in_chunks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 4 * 50)
    torch.manual_seed(0)
    model: Any = FAMILIES["gemma2, soft-capped"]().eval()
    batch = batch_of()
    seen: list[int] = []
    scorer = CompletionScorer(model, temperature=1.0)
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.numel()))
    chunked = scorer(batch)
    chunked.sum().backward()
    gradient = model.lm_head.weight.grad.clone()
    assert max(seen) <= 4 * 50
    assert len(seen) == 2 * -(-int(batch.loss_mask.sum()) // 4)  # once forward, once more for the backward pass
    model.zero_grad()
    plain(model, batch, 1.0).sum().backward()
    torch.testing.assert_close(gradient, model.lm_head.weight.grad, rtol=1e-3, atol=1e-5)


LARGE_VOCABULARY = """
import resource, torch
from transformers import LlamaConfig, LlamaForCausalLM
from ftis_node.config import FtisConfig
from ftis_node.memory import _reset_peak, _peak
from ftis_node.training.collate import TrainingSequence, collate
from ftis_node.training.ftis import LossInputs, ftis_loss
from ftis_node.training.logprobs import CompletionScorer

torch.manual_seed(0)
HIDDEN, VOCABULARY, TOKENS, ROWS = 64, 150_000, 2048, 2
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
    tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0))
model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()  # gradients are there
score = CompletionScorer(model, temperature=1.0)
row = TrainingSequence((1, 2, 3), tuple(range(TOKENS)), (-11.9,) * TOKENS, 1.0)
batch = collate([row] * ROWS, [[i] for i in range(ROWS)], pad_id=0, device=torch.device("cpu"))
device = torch.device("cpu")

before = _reset_peak(device)
body = model.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).last_hidden_state
body.sum().backward()
body_alone = _peak(device) - before

before = _reset_peak(device)
policy = score(batch)
inputs = LossInputs(policy, policy.detach(), batch.behavior_logprobs, batch.loss_mask,
                    torch.tensor([1.0, -1.0]), torch.full((ROWS,), 0.5))
ftis_loss(inputs, FtisConfig()).loss.backward()
print(_peak(device) - before - body_alone)
"""


def test_a_large_vocabulary_takes_less_than_a_gibibyte_above_the_body() -> None:
    """150,000 entries and completions of 2,048 tokens: all logits of these two rows would be 2.3 GiB, each time."""
    done = subprocess.run([sys.executable, "-c", LARGE_VOCABULARY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**30


def two_groups() -> list[TrainingSequence]:
    """Two prompts with three completions each."""
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 50, (count,), generator=generator).tolist())

    prompts = ids(9), ids(6)
    return [TrainingSequence(prompt, ids(count), (-1.0,) * count, 1.0) for prompt in prompts for count in (4, 7, 2)]


@pytest.mark.parametrize("name", ["llama", "qwen2, tied", "granite, scaled", "gpt2"])
def test_completions_that_share_their_prompt_have_the_same_logprobs_and_gradients(name: str) -> None:
    torch.manual_seed(0)
    model = FAMILIES[name]().eval()
    score = CompletionScorer(model, temperature=0.7)
    assert score.shares_prompts
    sequences = two_groups()
    results = []
    for packs in ([[0, 1, 2], [3, 4, 5]], [[0, 1], [2], [3], [4, 5]], [[row] for row in range(6)]):
        model.zero_grad()
        picked = score(collate(sequences, packs, pad_id=0, device=torch.device("cpu")))
        (picked * torch.linspace(-1, 1, picked.numel()).view_as(picked)).sum().backward()
        results.append((picked.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    alone = results[-1]
    for picked, gradients in results[:-1]:
        assert torch.allclose(picked, alone[0], atol=1e-5)
        for one, other in zip(gradients, alone[1], strict=True):
            assert torch.allclose(one, other, atol=1e-4)


def test_models_with_a_window_or_a_recurrent_state_share_nothing() -> None:
    torch.manual_seed(0)
    assert not CompletionScorer(FAMILIES["gemma2, soft-capped"]().eval(), temperature=1.0).shares_prompts
    eager = llama()
    eager.set_attn_implementation("eager")
    assert not CompletionScorer(eager, temperature=1.0).shares_prompts
