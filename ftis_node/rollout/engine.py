"""What a generation engine does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ftis_node.types import Completion, SamplingParams

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


class RolloutEngine(Protocol):
    """Token ids in, completions out. At most ``decode_rows`` completions are sampled at the same time."""

    decode_rows: int

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, count: int, sampling: SamplingParams, max_tokens: int, seed: int
    ) -> Rollouts:
        """Sample ``count`` completions of every prompt.

        ``behavior_logprobs`` are those of the distribution that was really sampled from, after
        temperature, top-k and top-p. The same seed gives the same completions. Nothing of a model's own
        generation configuration has an influence.
        """
        ...
