"""A step's sequences in one list, the sums over its micro-batches, and what is reported of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Literal

import torch
from torch import Tensor

from ftis_node.config import AdvantageNorm
from ftis_node.training.collate import MicroBatch, TrainingGroup, TrainingSequence
from ftis_node.training.ftis import LossInputs, LossOutputs, group_advantages

Fate = Literal["trained", "filtered", "zero_advantage", "excluded"]

OWN = "own"
NO_WEIGHT = "no_weight"
"""Why sequences of a group with weight 0 are excluded."""
CLAIM = "claim"
"""Why sequences are excluded that ``disbelieved`` finds."""


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """What became of one sequence of a step; ``group`` and ``member`` are its place in it.

    ``divergence`` is None where there was none to work out: without an advantage, or excluded, for the reason in
    ``excluded``.
    """

    group: int
    member: int
    advantage: float
    fate: Fate
    divergence: float | None
    excluded: str | None = None


@dataclass(frozen=True)
class GroupReport:
    """What became of one group's sequences; ``divergence`` is the mean over those with A < 0.

    ``excluded`` holds a reason for each sequence that has an advantage and could not be used. ``tokens`` are the own
    tokens of the completions that were trained on.
    """

    origin: str
    sequences: int
    trained: int
    filtered: int
    zero_advantage: int
    divergence: float | None
    mean_reward: float
    excluded: tuple[str, ...] = ()
    weight: float = 1.0
    tokens: int = 0


@dataclass(frozen=True)
class StepReport:
    """One step. ``offending`` names (group, sequence) positions whose log-probs were not finite.

    ``kl_threshold`` is the one that the filter of this step used; None without a filter.
    """

    stepped: bool
    skipped_reason: str | None
    loss: float
    gradient_norm: float | None
    importance_weight: float | None
    truncated_share: float | None
    clipped_share: float | None
    kl_threshold: float | None
    own_logprob_mismatch: float | None
    groups: tuple[GroupReport, ...]
    sequences: tuple[SequenceReport, ...]
    offending: tuple[tuple[int, int], ...]
    tokens_trained: int
    seconds_scoring: float
    seconds_training: float


@dataclass
class StepTally:
    """Sums over micro-batches."""

    loss: float = 0.0
    weight: float = 0.0
    truncated: float = 0.0
    clipped: float = 0.0
    tokens: int = 0
    mismatch: float = 0.0
    mismatch_tokens: int = 0
    disbelieved: set[int] = field(default_factory=set)
    keep: dict[int, bool] = field(default_factory=dict)
    divergence: dict[int, float] = field(default_factory=dict)
    offending: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class StepBatch:
    """All sequences of a step in one list, with what the loss needs of each."""

    sequences: tuple[TrainingSequence, ...]
    positions: tuple[tuple[int, int], ...]  # (group, sequence)
    advantages: Tensor  # [S]
    weights: Tensor  # [S], 1 / (N * G) times the group's weight
    origins: tuple[str, ...]
    own: tuple[bool, ...]


def lay_out(groups: Sequence[TrainingGroup], norm: AdvantageNorm) -> StepBatch:
    """The sequences of these groups in one list, N and G counted over all of them."""
    members = [(g, s) for g, group in enumerate(groups) for s in range(len(group.sequences))]
    sequences = tuple(
        groups[g].sequences[s] if groups[g].weight > 0 else _left_out(groups[g].sequences[s]) for g, s in members
    )
    rewards = torch.tensor([sequence.reward for sequence in sequences])
    group_ids = torch.tensor([g for g, _ in members])
    return StepBatch(
        sequences=sequences,
        positions=tuple(members),
        advantages=group_advantages(rewards, group_ids, norm),
        weights=torch.tensor([groups[g].weight / (len(groups) * len(groups[g].sequences)) for g, _ in members]),
        origins=tuple(groups[g].origin for g, _ in members),
        own=tuple(groups[g].origin == OWN for g, _ in members),
    )


def _left_out(sequence: TrainingSequence) -> TrainingSequence:
    return TrainingSequence(sequence.prompt_ids, (), (), sequence.reward, excluded=sequence.excluded or NO_WEIGHT)


def active_rows(batch: StepBatch) -> list[int]:
    """The rows that can have a gradient."""
    advantages = batch.advantages.tolist()
    return [row for row, a in enumerate(advantages) if a != 0 and batch.sequences[row].excluded is None]


def longest_own(batch: StepBatch) -> int:
    """Tokens of the longest own completion; 0 without one."""
    own = [len(s.completion_ids) for s, is_own in zip(batch.sequences, batch.own, strict=True) if is_own]
    return max(own, default=0)


def disbelieved(batch: StepBatch, micro: MicroBatch, old: Tensor, bound: float) -> Tensor:
    """Peers' sequences that hardly can have been sampled with the log-probs that are claimed; old [S, T] -> [S] bool.

    Over completions that are sampled from q, the mean of exp(sum(o - q)) is at most 1, whatever o is, since
    probabilities sum to 1. So under a true claim sum(o - q) > ``bound`` has a probability of exp(-bound) at most
    (Markov's inequality). A claim that is too low would get the largest weight at every token. Of chunks the claim is
    at their first tokens and 0 at the others, and the sum is the same.
    """
    own = torch.tensor([batch.own[row] for row in micro.rows], device=old.device)
    excess = (old - micro.behavior_logprobs).masked_fill(~micro.loss_mask, 0.0).double().sum(dim=1)
    return ~own & (excess > bound)


def loss_inputs(batch: StepBatch, micro: MicroBatch, policy: Tensor, old: Tensor) -> LossInputs:
    """What ``ftis_loss`` takes, of one micro-batch; policy and old log-probs are [S, T]."""
    rows = torch.tensor(micro.rows)
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=old,
        behavior_logprobs=micro.behavior_logprobs,
        loss_mask=micro.loss_mask,
        advantages=batch.advantages[rows].to(policy.device),
        sequence_weights=batch.weights[rows].to(policy.device),
        chunk_ids=micro.chunk_ids,
    )


def peers_divergences(batch: StepBatch, tally: StepTally) -> Mapping[str, list[float]]:
    """By author, in the order of the batch: the finite divergences of its sequences with A < 0. Without own ones."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for row, divergence in sorted(tally.divergence.items()):
        if not batch.own[row] and batch.advantages[row] < 0 and math.isfinite(divergence):
            found[batch.origins[row]].append(divergence)
    return found


def note_not_finite(policy: Tensor, old: Tensor, micro: MicroBatch, tally: StepTally) -> None:
    """Sequences with a log-prob [S, T] that is no number, on whichever side."""
    finite = torch.isfinite(policy) & torch.isfinite(old) & torch.isfinite(micro.behavior_logprobs)
    for index in (~finite & micro.loss_mask).any(dim=1).nonzero().flatten().tolist():
        tally.offending.add(micro.rows[index])


def add_micro_batch(batch: StepBatch, micro: MicroBatch, old: Tensor, outputs: LossOutputs, tally: StepTally) -> None:
    """The figures of one micro-batch's loss, means over tokens as sums."""
    believed = [row not in tally.disbelieved for row in micro.rows]
    keep, divergence = outputs.keep_mask.tolist(), outputs.divergence.tolist()
    lengths = micro.loss_mask.sum(dim=1).tolist()
    tokens = sum(length for length, kept in zip(lengths, keep, strict=True) if kept)
    tally.loss += outputs.loss.item()
    tally.tokens += tokens
    tally.weight += outputs.metrics.importance_weight.item() * tokens
    tally.truncated += outputs.metrics.truncated_share.item() * tokens
    tally.clipped += outputs.metrics.clipped_share.item() * tokens
    tally.keep.update(compress(zip(micro.rows, keep, strict=True), believed))
    tally.divergence.update(compress(zip(micro.rows, divergence, strict=True), believed))
    add_mismatch(batch, micro, old, tally)


def add_mismatch(batch: StepBatch, micro: MicroBatch, old: Tensor, tally: StepTally) -> None:
    """|o - q| on own sequences: what engine and trainer disagree by."""
    own = torch.tensor([batch.own[row] for row in micro.rows], device=old.device).unsqueeze(1)
    counted = micro.loss_mask & own
    tally.mismatch += (old - micro.behavior_logprobs).abs().masked_fill(~counted, 0.0).sum().item()
    tally.mismatch_tokens += int(counted.sum().item())


def group_report(index: int, group: TrainingGroup, batch: StepBatch, tally: StepTally) -> GroupReport:
    rows = [row for row, (g, _) in enumerate(batch.positions) if g == index]
    with_advantage = [row for row in rows if batch.advantages[row] != 0]
    active = [row for row in with_advantage if _excluded(batch, tally, row) is None]
    kept = sum(tally.keep.get(row, False) for row in active)
    filtered = sum(not tally.keep.get(row, True) for row in active)
    negative = [tally.divergence[row] for row in active if batch.advantages[row] < 0 and row in tally.divergence]
    return GroupReport(
        origin=group.origin,
        sequences=len(rows),
        trained=kept,
        filtered=filtered,
        zero_advantage=len(rows) - len(with_advantage),
        divergence=sum(negative) / len(negative) if negative else None,
        mean_reward=sum(sequence.reward for sequence in group.sequences) / len(rows),
        excluded=tuple(reason for row in with_advantage if (reason := _excluded(batch, tally, row)) is not None),
        weight=group.weight,
        tokens=sum(len(batch.sequences[row].completion_ids) for row in active if tally.keep.get(row, False)),
    )


def sequence_reports(batch: StepBatch, tally: StepTally) -> tuple[SequenceReport, ...]:
    """One for each sequence of the step, in its order."""
    return tuple(
        SequenceReport(
            group, member, advantage, _fate(batch, tally, row, advantage), tally.divergence.get(row),
            _excluded(batch, tally, row),
        )
        for row, ((group, member), advantage) in enumerate(zip(batch.positions, batch.advantages.tolist(), strict=True))
    )  # fmt: skip


def _excluded(batch: StepBatch, tally: StepTally, row: int) -> str | None:
    return CLAIM if row in tally.disbelieved else batch.sequences[row].excluded


def _fate(batch: StepBatch, tally: StepTally, row: int, advantage: float) -> Fate:
    if advantage == 0:
        return "zero_advantage"
    if _excluded(batch, tally, row) is not None:
        return "excluded"
    return "trained" if tally.keep[row] else "filtered"
