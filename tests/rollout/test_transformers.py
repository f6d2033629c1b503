"""Generation: the recorded log-probs are the trainer's, and nothing but the given parameters shapes the samples."""

import math
from collections import Counter

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import ModelError
from ftis_node.models import LoadedModel, load_model, render_prompt
from ftis_node.rollout.engine import GREEDY
from ftis_node.rollout.transformers import TransformersEngine
from ftis_node.tasks.stopping import tokens_until_stop
from ftis_node.training.collate import TrainingSequence, collate
from ftis_node.training.logprobs import CompletionScorer
from ftis_node.types import FinishReason, SamplingParams
from ftis_node.vocabulary import Vocabulary

PROMPTS = ["1+2+3=", "11+12+13=", "5+5+19=", "0+0+0="]
PLAIN = SamplingParams(1.0)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelConfig(name="builtin:small"), LoraConfig(), seed=0)


def engine_of(loaded: LoadedModel, decode_rows: int = 64) -> TransformersEngine:
    return TransformersEngine(loaded.model, loaded.vocabulary, pad_id=loaded.pad_id, decode_rows=decode_rows)


def prompts_of(loaded: LoadedModel) -> list[tuple[int, ...]]:
    return [render_prompt(loaded, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_recorded_log_probs_are_the_trainers(loaded: LoadedModel, temperature: float) -> None:
    """Prompts of different lengths share a batch, rows end at different times: still the same numbers."""
    prompts = prompts_of(loaded)
    rollouts = engine_of(loaded).generate(prompts, count=8, sampling=SamplingParams(temperature), max_tokens=24, seed=1)
    sequences = [
        TrainingSequence(prompt, c.token_ids, c.behavior_logprobs, 0.0)
        for prompt, group in zip(prompts, rollouts.completions, strict=True)
        for c in group
    ]
    batch = collate(
        sequences, [[row] for row in range(len(sequences))], pad_id=loaded.pad_id, device=torch.device("cpu")
    )
    with torch.no_grad():
        recomputed = CompletionScorer(loaded.model, temperature=temperature)(batch)
    difference = (recomputed - batch.behavior_logprobs).abs()[batch.loss_mask]
    assert difference.max().item() < 1e-4
    assert len({len(s.completion_ids) for s in sequences}) > 1


def test_greedy_is_what_model_generate_finds(loaded: LoadedModel) -> None:
    prompts = prompts_of(loaded)
    rollouts = engine_of(loaded).generate(prompts, count=1, sampling=GREEDY, max_tokens=24, seed=0)
    for prompt, (completion,) in zip(prompts, rollouts.completions, strict=True):
        ids = torch.tensor([prompt])
        expected = loaded.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=loaded.pad_id
        )[0, len(prompt) :]
        assert completion.token_ids == tuple(expected.tolist())


def test_a_completion_depends_on_seed_and_row_alone(loaded: LoadedModel) -> None:
    prompts = prompts_of(loaded)
    one = engine_of(loaded, decode_rows=64).generate(prompts, count=6, sampling=PLAIN, max_tokens=24, seed=7)
    other = engine_of(loaded, decode_rows=5).generate(prompts, count=6, sampling=PLAIN, max_tokens=24, seed=7)
    changed = engine_of(loaded).generate(prompts, count=6, sampling=PLAIN, max_tokens=24, seed=8)
    assert [[c.token_ids for c in g] for g in one.completions] == [[c.token_ids for c in g] for g in other.completions]
    assert one.completions != changed.completions


def test_a_models_own_generation_config_has_no_influence(loaded: LoadedModel) -> None:
    """A hostile model folder asks for greedy decoding, a tiny top-k and another end token."""
    prompts = prompts_of(loaded)
    before = engine_of(loaded).generate(prompts, count=8, sampling=PLAIN, max_tokens=24, seed=3)
    config = loaded.model.generation_config
    kept = config.to_dict()
    try:
        config.update(
            do_sample=False, top_k=1, top_p=0.01, temperature=0.01, eos_token_id=50, repetition_penalty=9.0,
            suppress_tokens=[51], max_length=3,
        )  # fmt: skip
        after = engine_of(loaded).generate(prompts, count=8, sampling=PLAIN, max_tokens=24, seed=3)
    finally:
        config.update(**kept)
    assert after.completions == before.completions


def test_texts_lengths_and_finish_reasons(loaded: LoadedModel) -> None:
    rollouts = engine_of(loaded).generate(prompts_of(loaded), count=16, sampling=PLAIN, max_tokens=5, seed=2)
    completions = [c for group in rollouts.completions for c in group]
    assert {c.finish_reason for c in completions} == set(FinishReason)
    for completion in completions:
        assert len(completion.token_ids) <= 5
        assert (completion.token_ids[-1] == 256) == (completion.finish_reason is FinishReason.STOP)
        assert (completion.text, completion.token_byte_lengths) == loaded.vocabulary.decode(completion.token_ids)
    assert rollouts.stats.tokens == sum(len(c.token_ids) for c in completions)


def tiny(vocabulary: int = 6) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                    num_attention_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    )  # fmt: skip
    with torch.no_grad():
        model.lm_head.weight.mul_(40)
    return model.eval()


def words(count: int, eos: int) -> Vocabulary:
    table = tuple(b"" if i == eos else b"%d" % i for i in range(count))
    return Vocabulary(table, frozenset({eos}), (eos,))


@pytest.mark.parametrize(
    "sampling", [PLAIN, SamplingParams(0.6), SamplingParams(1.0, top_k=3), SamplingParams(1.0, top_p=0.8)]
)
def test_first_tokens_follow_the_stated_distribution(sampling: SamplingParams) -> None:
    """Chi-square of 20,000 draws; the bound is the 99.99 % quantile for at most 5 degrees of freedom."""
    model, count = tiny(), 20_000
    engine = TransformersEngine(model, words(6, 5), pad_id=5, decode_rows=20_000)
    rollouts = engine.generate([(1, 2)], count=count, sampling=sampling, max_tokens=1, seed=11)
    seen = Counter(c.token_ids[0] for c in rollouts.completions[0])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 2]])).logits[0, -1] / sampling.temperature
    order = logits.argsort(descending=True).tolist()
    probabilities = torch.softmax(logits, dim=-1)
    if sampling.top_k:
        allowed = order[: sampling.top_k]
    else:
        allowed, total = [], 0.0
        for token in order:
            if total < sampling.top_p:
                allowed.append(token)
            total += probabilities[token].item()
    mass = sum(probabilities[token].item() for token in allowed)
    expected = {token: count * probabilities[token].item() / mass for token in allowed}
    assert set(seen) <= set(allowed)
    assert sum((seen[t] - e) ** 2 / e for t, e in expected.items()) < 25.7
    for completion in rollouts.completions[0][:50]:
        token = completion.token_ids[0]
        assert completion.behavior_logprobs[0] == pytest.approx(math.log(expected[token] / count), abs=1e-4)


def test_where_pad_is_the_end_token_its_log_prob_is_still_recorded() -> None:
    engine = TransformersEngine(tiny(), words(6, 5), pad_id=5, decode_rows=8)
    rollouts = engine.generate([(1,), (1, 2, 3)], count=200, sampling=PLAIN, max_tokens=12, seed=0)
    ended = [c for group in rollouts.completions for c in group if c.finish_reason is FinishReason.STOP]
    assert ended
    assert all(c.token_ids[-1] == 5 and c.behavior_logprobs[-1] < 0 for c in ended)


def test_ids_that_the_tokenizer_does_not_know_end_a_completion_before_them() -> None:
    """The embedding has 6 rows, the tokenizer 4 words: padding rows are never published."""
    engine = TransformersEngine(tiny(), words(4, 3), pad_id=3, decode_rows=64)
    rollouts = engine.generate([(1, 2)], count=64, sampling=PLAIN, max_tokens=6, seed=0)
    assert all(token < 4 for c in rollouts.completions[0] for token in c.token_ids)


def test_stop_strings_end_a_completion_and_change_nothing_before_it(loaded: LoadedModel) -> None:
    prompts, stops = prompts_of(loaded), [("6", "1"), ("3", "4"), (), ("no such text",)]
    whole = engine_of(loaded).generate(prompts, count=8, sampling=PLAIN, max_tokens=24, seed=1)
    cut = engine_of(loaded, decode_rows=7).generate(
        prompts, count=8, sampling=PLAIN, max_tokens=24, seed=1, stops=stops
    )
    ended = 0
    for ends, group, cut_group in zip(stops, whole.completions, cut.completions, strict=True):
        for completion, shorter in zip(group, cut_group, strict=True):
            count = tokens_until_stop(completion.text, completion.token_byte_lengths, ends)
            ended += count is not None and count < len(completion.token_ids)
            assert shorter.token_ids == completion.token_ids[:count]
            assert shorter.behavior_logprobs == pytest.approx(completion.behavior_logprobs[:count], abs=1e-5)
            assert loaded.vocabulary.decode(shorter.token_ids) == (shorter.text, shorter.token_byte_lengths)
            assert shorter.finish_reason is (completion.finish_reason if count is None else FinishReason.STOP)
    assert ended >= 4
    assert cut.stats.tokens == sum(len(c.token_ids) for group in cut.completions for c in group)
    assert cut.stats.tokens < whole.stats.tokens


def test_an_empty_prompt_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match="a prompt is empty"):
        engine_of(loaded).generate([()], count=1, sampling=PLAIN, max_tokens=3, seed=0)


def test_generation_leaves_the_model_as_it_was(loaded: LoadedModel) -> None:
    """Weights keep values and memory order, and a training step works right after."""
    before = {name: (p.clone(), p.stride()) for name, p in loaded.model.named_parameters()}
    loaded.model.train()
    engine_of(loaded).generate(prompts_of(loaded), count=2, sampling=PLAIN, max_tokens=4, seed=0)
    assert loaded.model.training
    loaded.model.eval()
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.stride() == before[name][1]
        assert parameter.requires_grad


def test_an_adapter_is_part_of_what_is_sampled_from() -> None:
    adapted = load_model(ModelConfig(name="builtin:small"), LoraConfig(rank=4), seed=0)
    prompts = prompts_of(adapted)
    before = engine_of(adapted).generate(prompts, count=4, sampling=PLAIN, max_tokens=24, seed=5)
    with torch.no_grad():
        for name, parameter in adapted.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    after = engine_of(adapted).generate(prompts, count=4, sampling=PLAIN, max_tokens=24, seed=5)
    assert before.completions != after.completions
