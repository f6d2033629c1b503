"""From groups of sequences to padded micro-batches under a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One completion to learn from. ``behavior_logprobs`` has one value per completion token.

    With ``chunk_ids`` it comes from a foreign tokenizer (``training.alignment``). One with a reason in ``excluded``
    has no completion tokens and contributes nothing but its reward to its group's baseline.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    reward: float
    chunk_ids: tuple[int, ...] | None = None
    excluded: str | None = None

    @property
    def length(self) -> int:
        """Prompt and completion tokens."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """The completions of one prompt by one author; ``origin`` is ``"own"`` or a peer's hex id."""

    origin: str
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True)
class MicroBatch:
    """S sequences, right-padded. ``rows`` are their positions in the list they were taken from.

    ``input_ids`` and ``attention_mask`` [S, P + T]; the rest concerns completion tokens only and is
    [S, T], left-aligned. ``gather`` [S, T] is the position whose hidden state predicts the token.
    """

    rows: tuple[int, ...]
    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor
    gather: Tensor
    loss_mask: Tensor
    behavior_logprobs: Tensor
    chunk_ids: Tensor | None


def split_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows in order of length, cut so that rows times longest row stays within ``budget`` tokens.

    A row that is longer than the budget makes a micro-batch of its own.
    """
    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True):
        # The first row of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def collate(
    sequences: Sequence[TrainingSequence], rows: Sequence[int], *, pad_id: int, device: torch.device
) -> MicroBatch:
    """Pad the chosen sequences. Masks come from lengths, never from ``pad_id``, which may be the end token."""
    chosen = [sequences[row] for row in rows]
    width = max(sequence.length for sequence in chosen)
    tokens = max(len(sequence.completion_ids) for sequence in chosen)
    input_ids = torch.full((len(chosen), width), pad_id)
    attention_mask = torch.zeros(len(chosen), width, dtype=torch.long)
    targets = torch.zeros(len(chosen), tokens, dtype=torch.long)
    gather = torch.zeros(len(chosen), tokens, dtype=torch.long)
    loss_mask = torch.zeros(len(chosen), tokens, dtype=torch.bool)
    behavior = torch.zeros(len(chosen), tokens)
    chunked = any(sequence.chunk_ids is not None for sequence in chosen)
    chunk_ids = torch.arange(tokens).repeat(len(chosen), 1) if chunked else None
    for row, sequence in enumerate(chosen):
        prompt, count = len(sequence.prompt_ids), len(sequence.completion_ids)
        input_ids[row, : sequence.length] = torch.tensor(sequence.prompt_ids + sequence.completion_ids)
        attention_mask[row, : sequence.length] = 1
        targets[row, :count] = torch.tensor(sequence.completion_ids)
        gather[row, :count] = torch.arange(prompt - 1, prompt - 1 + count)
        loss_mask[row, :count] = True
        behavior[row, :count] = torch.tensor(sequence.behavior_logprobs)
        if chunk_ids is not None and sequence.chunk_ids is not None:
            chunk_ids[row, :count] = torch.tensor(sequence.chunk_ids)
            chunk_ids[row, count:] = sequence.chunk_ids[-1] + 1
    return MicroBatch(
        rows=tuple(rows),
        input_ids=input_ids.to(device),
        attention_mask=attention_mask.to(device),
        targets=targets.to(device),
        gather=gather.to(device),
        loss_mask=loss_mask.to(device),
        behavior_logprobs=behavior.to(device),
        chunk_ids=None if chunk_ids is None else chunk_ids.to(device),
    )
