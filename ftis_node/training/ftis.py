"""The F-TIS objective as a pure function (arXiv 2605.22537; clip and group advantages: arXiv 2402.03300).

For one sequence with advantage A, with l, o, q the policy, old and behaviour log-probs of its tokens::

    divergence   from q - o, one number per sequence
    filter       A < 0 and divergence > kl_threshold: the sequence contributes nothing
    weight       w = stop_gradient(min(exp(o - q), truncation))
    ratio        R = exp(l - o)
    loss         -sequence_weight / L * sum over tokens of w * min(R A, clip(R) A)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ftis_node.config import AdvantageNorm, FtisConfig, KlEstimator

__all__ = ["FtisConfig", "FtisMetrics", "LossInputs", "LossOutputs", "ftis_loss", "group_advantages"]

LARGEST_EXPONENT = 20.0


@dataclass(frozen=True)
class LossInputs:
    """What the loss needs; S sequences, padded to T completion tokens.

    ``policy_logprobs`` carry the gradient. ``sequence_weights`` are 1 / (N * G) of each sequence's
    group, with N and G counted before anything was left out, times the group's own weight. Where
    ``loss_mask`` is 0 the log-probs may hold anything. ``chunk_ids`` says which local tokens belong
    to one chunk of an aligned foreign tokenization (equal, consecutive numbers per sequence); a
    chunk's behaviour log-prob is the value at its first token. ``weight_floors`` are lower bounds of the importance
    weight where the advantage is above 0: what a peer can do and this party can't (``training.guidance``).
    """

    policy_logprobs: Tensor  # [S, T] float
    old_logprobs: Tensor  # [S, T] float
    behavior_logprobs: Tensor  # [S, T] float
    loss_mask: Tensor  # [S, T] bool
    advantages: Tensor  # [S] float
    sequence_weights: Tensor  # [S] float
    chunk_ids: Tensor | None = None  # [S, T] long
    weight_floors: Tensor | None = None  # [S] float


@dataclass(frozen=True)
class FtisMetrics:
    """Figures over the kept sequences with an advantage; all tensors are scalars without gradient."""

    importance_weight: Tensor  # mean over tokens
    truncated_share: Tensor  # share of tokens whose weight was truncated
    clipped_share: Tensor  # share of tokens whose ratio was clipped
    filtered: Tensor  # number of sequences that the filter dropped


@dataclass(frozen=True)
class LossOutputs:
    """``loss`` is a scalar with gradient; ``keep_mask`` [S] bool is False for filtered sequences."""

    loss: Tensor
    keep_mask: Tensor
    divergence: Tensor
    metrics: FtisMetrics


def group_advantages(rewards: Tensor, group_ids: Tensor, normalize: AdvantageNorm) -> Tensor:
    """A = r - mean of the group, over its sample standard deviation + 1e-8 if ``normalize`` is "std".

    rewards [S], group_ids [S] long -> [S] float. A group with equal rewards gets exactly 0.
    """
    advantages = torch.zeros_like(rewards, dtype=torch.float64)
    for group_id in torch.unique(group_ids):
        members = group_ids == group_id
        group = rewards[members].double()
        if group.max() == group.min():
            continue
        centred = group - group.mean()
        advantages[members] = centred / (group.std(unbiased=True) + 1e-8) if normalize == "std" else centred
    return advantages.to(rewards.dtype if rewards.is_floating_point() else torch.float32)


def ftis_loss(inputs: LossInputs, config: FtisConfig) -> LossOutputs:
    """The loss of all given sequences; sums over micro-batches are the loss of the whole batch.

    Raises ValueError for a ``vis`` method with chunks, which has no meaning, and for a filter without a number.
    """
    if inputs.chunk_ids is not None and config.method.endswith("vis"):
        raise ValueError(f"method {config.method!r} can't learn from foreign tokenizers: its ratio needs their tokens")
    mask = inputs.loss_mask.bool()
    # Padding may hold nan or inf; multiplied by zero they would still poison sum and gradient.
    policy = inputs.policy_logprobs.masked_fill(~mask, 0.0)
    old = inputs.old_logprobs.detach().masked_fill(~mask, 0.0)
    behavior = inputs.behavior_logprobs.detach().masked_fill(~mask, 0.0)
    advantages = inputs.advantages.detach()
    lengths = mask.sum(dim=1).clamp(min=1)

    if inputs.chunk_ids is None:
        delta, units = behavior - old, mask
        log_weight = -delta
    else:
        delta, units = _chunk_deltas(behavior, old, mask, inputs.chunk_ids)
        log_weight = -_spread(delta, mask, inputs.chunk_ids)
    divergence = _divergence(delta, units, config.kl_estimator)

    keep = torch.ones_like(advantages, dtype=torch.bool)
    if config.filters:
        if not isinstance(config.kl_threshold, float):
            raise ValueError(f"kl_threshold = {config.kl_threshold!r}: the loss needs a number")
        keep = ~((advantages < 0) & (divergence > config.kl_threshold))

    log_limit = math.log(config.truncation)
    weight = torch.exp(log_weight.clamp(max=log_limit)) if config.weighs else torch.ones_like(policy)
    if inputs.weight_floors is not None and config.guidance != "off":
        floors = inputs.weight_floors.detach().masked_fill(advantages <= 0, 0.0)
        weight = torch.maximum(weight, floors.unsqueeze(1))
    reference = behavior if config.method.endswith("vis") else old
    used = mask & keep.unsqueeze(1)
    # A dropped sequence may hold any distance: its exponential must not overflow into the gradient.
    ratio = torch.exp((policy - reference).masked_fill(~used, 0.0))
    clipped = ratio.clamp(1.0 - config.clip_epsilon, 1.0 + config.clip_epsilon)
    column = advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * column, clipped * column)
    per_sequence = (weight * surrogate).masked_fill(~used, 0.0).sum(dim=1) / lengths
    loss = -(inputs.sequence_weights.detach() * per_sequence).sum()

    with torch.no_grad():
        counted = used & (column != 0)
        tokens = counted.sum().clamp(min=1)
        metrics = FtisMetrics(
            importance_weight=weight.masked_fill(~counted, 0.0).sum() / tokens,
            truncated_share=(counted & (log_weight > log_limit)).sum() / tokens,
            clipped_share=(counted & (clipped * column < ratio * column)).sum() / tokens,
            filtered=(~keep).sum(),
        )
    return LossOutputs(loss=loss, keep_mask=keep, divergence=divergence, metrics=metrics)


def _divergence(delta: Tensor, units: Tensor, estimator: KlEstimator) -> Tensor:
    """One number per sequence from delta = q - o over tokens or chunks; [S, T] -> [S]."""
    count = units.sum(dim=1).clamp(min=1)
    if estimator == "k1_sum":
        return delta.masked_fill(~units, 0.0).sum(dim=1)
    if estimator == "k1_mean":
        return delta.masked_fill(~units, 0.0).sum(dim=1) / count
    if estimator == "k3":
        terms = torch.expm1(delta.clamp(max=LARGEST_EXPONENT)) - delta
    else:
        terms = torch.expm1((-delta).clamp(max=LARGEST_EXPONENT)) + delta
    return terms.masked_fill(~units, 0.0).sum(dim=1) / count


def _first_tokens(mask: Tensor, chunk_ids: Tensor) -> Tensor:
    """True at the first token of every chunk; [S, T] bool."""
    first = torch.ones_like(mask)
    first[:, 1:] = chunk_ids[:, 1:] != chunk_ids[:, :-1]
    return first & mask


def _chunk_deltas(behavior: Tensor, old: Tensor, mask: Tensor, chunk_ids: Tensor) -> tuple[Tensor, Tensor]:
    """q - o summed over each chunk, placed at its first token, and where those are; both [S, T]."""
    first = _first_tokens(mask, chunk_ids)
    index = _chunk_index(first)
    old_sums = torch.zeros_like(old).scatter_add_(1, index, old)
    # A chunk's sum sits where it is computed, at column `index`; bring it to the chunk's first token.
    sums_at_tokens = old_sums.gather(1, index)
    return (behavior - sums_at_tokens).masked_fill(~first, 0.0), first


def _spread(delta: Tensor, mask: Tensor, chunk_ids: Tensor) -> Tensor:
    """Give every token of a chunk the value at the chunk's first token; [S, T]."""
    first = _first_tokens(mask, chunk_ids)
    index = _chunk_index(first)
    at_chunks = torch.zeros_like(delta).scatter_add_(1, index, delta.masked_fill(~first, 0.0))
    return at_chunks.gather(1, index)


def _chunk_index(first: Tensor) -> Tensor:
    """Number of the chunk that each token belongs to, from 0; [S, T] long."""
    return (first.long().cumsum(dim=1) - 1).clamp(min=0)
