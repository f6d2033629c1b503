"""From logits to a token and its log-prob, for a batch of rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ftis_node.types import SamplingParams


def row_uniforms(seed: int, row: int, count: int) -> Tensor:
    """``count`` numbers in [0, 1) for one completion; [count] float64.

    Philox is counter-based: what a completion draws depends on (seed, row) only, never on which other
    rows share its batch.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, row]))
    return torch.from_numpy(generator.random(count))


def sample(logits: Tensor, uniforms: Tensor, sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    """logits [R, V], uniforms [R] -> token ids [R] long and their log-probs [R] float32.

    One cumulative sum and a search per row: much cheaper than one exponential draw per entry of a large
    vocabulary.
    """
    logits = logits.float()
    if sampling.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        return tokens, _pick(torch.log_softmax(logits, dim=-1), tokens)
    logprobs = torch.log_softmax(_truncate(logits / sampling.temperature, sampling), dim=-1)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    # The sum is 1 up to rounding; scaling by it keeps the draw inside, and side="right" never hits a
    # token without probability.
    thresholds = uniforms.to(cumulative.device).unsqueeze(1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, thresholds, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    return tokens, _pick(logprobs, tokens)


def _pick(logprobs: Tensor, tokens: Tensor) -> Tensor:
    return logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _truncate(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Top-k, then top-p, as everywhere in the field; ties at the k-th value all stay."""
    if 0 < sampling.top_k < logits.shape[-1]:
        limit = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < limit, float("-inf"))
    if sampling.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = torch.softmax(ordered, dim=-1)
        # A token stays if what comes before it is below top_p; so the most likely one always stays.
        before = probabilities.cumsum(dim=-1) - probabilities
        removed = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(removed, float("-inf"))
    return logits
