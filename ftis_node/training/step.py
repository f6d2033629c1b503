"""A step's sequences in one list, the sums over its micro-batches, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ftis_node.training.collate import MicroBatch, TrainingGroup, TrainingSequence
from ftis_node.training.ftis import LossOutputs

Fate = Literal["trained", "filtered", "zero_advantage", "excluded"]


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """What became of one sequence of a step; ``group`` and ``member`` are its place in it.

    ``divergence`` is None where there was none to work out: without an advantage, or excluded.
    """

    group: int
    member: int
    advantage: float
    fate: Fate
    divergence: float | None


@dataclass(frozen=True)
class GroupReport:
    """What became of one group's sequences; ``divergence`` is the mean over those with A < 0.

    ``excluded`` holds a reason for each sequence that has an advantage and could not be used.
    """

    origin: str
    sequences: int
    trained: int
    filtered: int
    zero_advantage: int
    divergence: float | None
    mean_reward: float
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepReport:
    """One step. ``offending`` names (group, sequence) positions whose log-probs were not finite."""

    stepped: bool
    skipped_reason: str | None
    loss: float
    gradient_norm: float | None
    importance_weight: float | None
    truncated_share: float | None
    clipped_share: float | None
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
    keep: dict[int, bool] = field(default_factory=dict)
    divergence: dict[int, float] = field(default_factory=dict)
    offending: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class StepBatch:
    """All sequences of a step in one list, with what the loss needs of each."""

    sequences: tuple[TrainingSequence, ...]
    positions: tuple[tuple[int, int], ...]  # (group, sequence)
    advantages: Tensor  # [S]
    weights: Tensor  # [S], 1 / (N * G)
    own: tuple[bool, ...]


def note_not_finite(policy: Tensor, old: Tensor, micro: MicroBatch, tally: StepTally) -> None:
    """Sequences with a log-prob [S, T] that is no number, on whichever side."""
    finite = torch.isfinite(policy) & torch.isfinite(old) & torch.isfinite(micro.behavior_logprobs)
    for index in (~finite & micro.loss_mask).any(dim=1).nonzero().flatten().tolist():
        tally.offending.add(micro.rows[index])


def add_micro_batch(batch: StepBatch, micro: MicroBatch, old: Tensor, outputs: LossOutputs, tally: StepTally) -> None:
    """The figures of one micro-batch's loss, means over tokens as sums."""
    keep, divergence = outputs.keep_mask.tolist(), outputs.divergence.tolist()
    lengths = micro.loss_mask.sum(dim=1).tolist()
    tokens = sum(length for length, kept in zip(lengths, keep, strict=True) if kept)
    tally.loss += outputs.loss.item()
    tally.tokens += tokens
    tally.weight += outputs.metrics.importance_weight.item() * tokens
    tally.truncated += outputs.metrics.truncated_share.item() * tokens
    tally.clipped += outputs.metrics.clipped_share.item() * tokens
    tally.keep.update(zip(micro.rows, keep, strict=True))
    tally.divergence.update(zip(micro.rows, divergence, strict=True))
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
    active = [row for row in with_advantage if batch.sequences[row].excluded is None]
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
        excluded=tuple(reason for row in with_advantage if (reason := batch.sequences[row].excluded) is not None),
    )


def sequence_reports(batch: StepBatch, tally: StepTally) -> tuple[SequenceReport, ...]:
    """One for each sequence of the step, in its order."""
    return tuple(
        SequenceReport(group, member, advantage, _fate(batch, tally, row, advantage), tally.divergence.get(row))
        for row, ((group, member), advantage) in enumerate(zip(batch.positions, batch.advantages.tolist(), strict=True))
    )


def _fate(batch: StepBatch, tally: StepTally, row: int, advantage: float) -> Fate:
    if advantage == 0:
        return "zero_advantage"
    if batch.sequences[row].excluded is not None:
        return "excluded"
    return "trained" if tally.keep[row] else "filtered"
