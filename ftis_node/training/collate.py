"""From groups of sequences to padded micro-batches under a token budget.

Completions of one prompt may share it: a *pack* is the prompt once and its completions behind it, each of which sees
the prompt and itself. That saves the prompt's forward and backward pass for all completions but one.
"""

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
    """The completions of one prompt by one author; ``origin`` is ``"own"`` or a peer's hex id.

    ``weight``, 0 to 1, is a factor on the loss of its sequences; with 0 they are left out.
    """

    origin: str
    sequences: tuple[TrainingSequence, ...]
    weight: float = 1.0

    @property
    def teaches(self) -> bool:
        """Whether its rewards differ: else no sequence has an advantage."""
        return len({sequence.reward for sequence in self.sequences}) > 1


@dataclass(frozen=True)
class MicroBatch:
    """S sequences in R packs (R = S without sharing), right-padded to W tokens.

    ``rows`` are the sequences' positions in the list they were taken from. ``input_ids`` [R, W];
    ``attention_mask`` [R, W], or with shared prompts [R, 1, W, W] bool, True where a token may look, and then
    ``position_ids`` [R, W]. The rest concerns completion tokens only and is [S, T], left-aligned: ``gather`` [S, T] is
    the position whose hidden state predicts the token, in the pack ``pack_of`` [S].
    """

    rows: tuple[int, ...]
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor | None
    pack_of: Tensor
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


LONGEST_PACK = 4096
"""Tokens; the mask of a pack is as large as their square."""


def pack_rows(
    sequences: Sequence[TrainingSequence], rows: Sequence[int], *, hidden: int, budget: int
) -> list[tuple[int, ...]]:
    """Rows that share a prompt, where that is cheaper, within ``budget`` tokens; the others alone.

    ``hidden`` is the model's width. Per layer a token costs about 24 hidden^2 operations and a pair of tokens that see
    each other 4 hidden; in a pack all pairs are computed, and most are masked.
    """
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        by_prompt.setdefault(sequences[row].prompt_ids, []).append(row)
    packs: list[tuple[int, ...]] = []
    for members in by_prompt.values():
        pack: list[int] = []
        for row in members:
            longer = pack_length(sequences, [*pack, row])
            if pack and not (longer <= min(budget, LONGEST_PACK) and _is_cheaper(sequences, [*pack, row], hidden)):
                packs.append(tuple(pack))
                pack = []
            pack.append(row)
        packs.append(tuple(pack))
    return packs


def pack_length(sequences: Sequence[TrainingSequence], pack: Sequence[int]) -> int:
    """The prompt once, and all completions."""
    return len(sequences[pack[0]].prompt_ids) + sum(len(sequences[row].completion_ids) for row in pack)


def _is_cheaper(sequences: Sequence[TrainingSequence], pack: Sequence[int], hidden: int) -> bool:
    saved_tokens = (len(pack) - 1) * len(sequences[pack[0]].prompt_ids)
    added_pairs = pack_length(sequences, pack) ** 2 - sum(sequences[row].length ** 2 for row in pack)
    return 24 * hidden * hidden * saved_tokens > 4 * hidden * added_pairs


def collate(
    sequences: Sequence[TrainingSequence], packs: Sequence[Sequence[int]], *, pad_id: int, device: torch.device
) -> MicroBatch:
    """Pad the chosen packs. Masks come from lengths, never from ``pad_id``, which may be the end token."""
    rows = [row for pack in packs for row in pack]
    shared = any(len(pack) > 1 for pack in packs)
    width = max(pack_length(sequences, pack) for pack in packs)
    tokens = max(len(sequences[row].completion_ids) for row in rows)
    input_ids = torch.full((len(packs), width), pad_id)
    positions = torch.zeros(len(packs), width, dtype=torch.long)
    # Which segment a token belongs to: 0 is the prompt, 1 and up the completions, -1 padding.
    segments = torch.full((len(packs), width), -1)
    targets = torch.zeros(len(rows), tokens, dtype=torch.long)
    gather = torch.zeros(len(rows), tokens, dtype=torch.long)
    loss_mask = torch.zeros(len(rows), tokens, dtype=torch.bool)
    behavior = torch.zeros(len(rows), tokens)
    chunked = any(sequences[row].chunk_ids is not None for row in rows)
    chunk_ids = torch.arange(tokens).repeat(len(rows), 1) if chunked else None
    pack_of = torch.tensor([index for index, pack in enumerate(packs) for _ in pack])
    position = 0
    for index, pack in enumerate(packs):
        prompt_ids = sequences[pack[0]].prompt_ids
        prompt = end = len(prompt_ids)
        input_ids[index, :prompt] = torch.tensor(prompt_ids)
        positions[index, :prompt] = torch.arange(prompt)
        segments[index, :prompt] = 0
        for member, row in enumerate(pack, start=1):
            sequence, at = sequences[row], position
            count = len(sequence.completion_ids)
            completion = torch.tensor(sequence.completion_ids)
            input_ids[index, end : end + count] = completion
            positions[index, end : end + count] = torch.arange(prompt, prompt + count)
            segments[index, end : end + count] = member
            targets[at, :count] = completion
            # The prompt's last token predicts the first one, each token the next.
            gather[at, :count] = torch.arange(end - 1, end - 1 + count)
            if count:
                gather[at, 0] = prompt - 1
            loss_mask[at, :count] = True
            behavior[at, :count] = torch.tensor(sequence.behavior_logprobs)
            if chunk_ids is not None and sequence.chunk_ids is not None:
                chunk_ids[at, :count] = torch.tensor(sequence.chunk_ids)
                chunk_ids[at, count:] = sequence.chunk_ids[-1] + 1
            end += count
            position += 1
    return MicroBatch(
        rows=tuple(rows),
        input_ids=input_ids.to(device),
        attention_mask=(_sharing_mask(segments.to(device)) if shared else (segments >= 0).long().to(device)),
        position_ids=positions.to(device) if shared else None,
        pack_of=pack_of.to(device),
        targets=targets.to(device),
        gather=gather.to(device),
        loss_mask=loss_mask.to(device),
        behavior_logprobs=behavior.to(device),
        chunk_ids=None if chunk_ids is None else chunk_ids.to(device),
    )


def _sharing_mask(segments: Tensor) -> Tensor:
    """segments [R, W] -> [R, 1, W, W]: tokens look back at the prompt and at their own completion.

    Padding looks at itself, so that no row of the softmax is empty.
    """
    width = segments.shape[1]
    query, key = segments.unsqueeze(2), segments.unsqueeze(1)
    earlier = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    allowed = earlier & ((key == query) | (key == 0)) & (key >= 0)
    allowed |= torch.eye(width, dtype=torch.bool, device=segments.device)
    return allowed.unsqueeze(1)
