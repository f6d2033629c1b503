"""What a generation engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ftis_node.errors import ModelError
from ftis_node.tasks.stopping import tokens_until_stop
from ftis_node.types import Completion, FinishReason, SamplingParams
from ftis_node.vocabulary import Vocabulary

GREEDY = SamplingParams(temperature=0.0)
"""The most likely token every time; log-probs are then those at temperature 1."""


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Figures of one call: sampled tokens, seconds, and how many rows a decode step had on average."""

    tokens: int
    seconds: float
    mean_rows: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Rollouts:
    """``completions[i]`` are those of the i-th prompt."""

    completions: tuple[tuple[Completion, ...], ...]
    stats: GenerationStats


def refuse_empty_prompts(prompts: Sequence[tuple[int, ...]]) -> None:
    """Raises ModelError: without a token before it, there is no distribution for the first one."""
    if any(not prompt for prompt in prompts):
        raise ModelError("a prompt is empty: there is nothing to continue")


def stops_of(prompts: Sequence[tuple[int, ...]], stops: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The stop strings of every prompt, where ``stops`` are given for all of them or for none."""
    return list(stops) if stops else [()] * len(prompts)


def completion_of(
    vocabulary: Vocabulary, token_ids: list[int], logprobs: list[float], stops: Sequence[str] = ()
) -> Completion:
    """A completion from what was sampled; what comes behind a stop string is left out.

    Ids that the tokenizer doesn't know (padding rows of an embedding) end the completion before them. Their
    probability is practically zero in a trained model; a completion that holds one could not be published, and
    masking them would sample from another distribution than the one that is trained.
    """
    unknown = next((i for i, token in enumerate(token_ids) if token >= vocabulary.size), None)
    if unknown is not None:
        token_ids, logprobs = token_ids[:unknown], logprobs[:unknown]
    text, lengths = vocabulary.decode(token_ids)
    until_stop = tokens_until_stop(text, lengths, stops)
    if until_stop is not None:
        token_ids, logprobs, lengths = token_ids[:until_stop], logprobs[:until_stop], lengths[:until_stop]
        text = text[: sum(lengths)]
    ended = until_stop is not None or (bool(token_ids) and token_ids[-1] in vocabulary.eos_token_ids)
    return Completion(
        token_ids=tuple(token_ids),
        # Rounding may leave a hair above zero where one token has all the probability.
        behavior_logprobs=tuple(min(logprob, 0.0) for logprob in logprobs),
        text=text,
        token_byte_lengths=lengths,
        finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
    )


class RolloutEngine(Protocol):
    """Token ids in, completions out."""

    @property
    def decode_rows(self) -> int:
        """The most completions that are sampled at the same time."""
        ...

    def lower_decode_rows(self, rows: int) -> None:
        """Sample no more than ``rows`` at the same time from now on, where the engine doesn't see to it itself."""
        ...

    def sync(self) -> None:
        """Take over the trained model's weights as they are now; to be called after every change of them."""
        ...

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, count: int, sampling: SamplingParams, max_tokens: int, seed: int,
        stops: Sequence[tuple[str, ...]] = (),
    ) -> Rollouts:  # fmt: skip
        """Sample ``count`` completions of every prompt, each up to the first of its prompt's ``stops``.

        ``behavior_logprobs`` are those of the distribution that was really sampled from, after
        temperature, top-k and top-p. The same seed gives the same completions. Nothing of a model's own
        generation configuration has an influence.
        """
        ...
