"""Forward and backward passes over a step's sequences, in micro-batches within a budget of padded tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import torch
from torch import Tensor

from ftis_node.config import FtisConfig
from ftis_node.training.collate import MicroBatch, collate, pack_length, pack_rows, split_rows
from ftis_node.training.ftis import LossOutputs, ftis_loss
from ftis_node.training.logprobs import CompletionScorer
from ftis_node.training.step import (
    StepBatch,
    StepTally,
    add_micro_batch,
    add_mismatch,
    disbelieved,
    loss_inputs,
    note_not_finite,
)

MISMATCH_SEQUENCES = 4
"""Own sequences that are scored for the mismatch metric alone when no own one has an advantage."""


class Passes:
    """Of one model. ``budget`` is in padded tokens and may be lowered between two calls."""

    def __init__(
        self, score: CompletionScorer, *, pad_id: int, device: torch.device, budget: int, claim_bound: float
    ) -> None:
        self._score = score
        self._pad_id = pad_id
        self._device = device
        self._claim_bound = claim_bound
        self.budget = budget

    @torch.no_grad()
    def score_old(self, batch: StepBatch, rows: Sequence[int]) -> dict[int, Tensor]:
        """Log-probs at the start of the update, for several epochs on one batch; by row."""
        old = {}
        for micro in self._micro_batches(batch, rows):
            logprobs = self._score(micro)
            for index, row in enumerate(micro.rows):
                old[row] = logprobs[index, : len(batch.sequences[row].completion_ids)]
        return old

    def accumulate(
        self, batch: StepBatch, rows: Sequence[int], ftis: FtisConfig, old: dict[int, Tensor] | None, tally: StepTally
    ) -> None:
        """Add the gradient of the loss over these rows to the parameters' own, and its figures to ``tally``."""
        # What the filter may drop goes into micro-batches of its own.
        risky = [row for row in rows if batch.advantages[row] < 0 and not batch.own[row] and ftis.filters]
        safe = sorted(set(rows) - set(risky))
        for micro in (*self._micro_batches(batch, safe), *self._micro_batches(batch, risky)):
            policy = self._score(micro)
            start = policy.detach() if old is None else _pad([old[row] for row in micro.rows], policy.shape[1])
            note_not_finite(policy.detach(), start, micro, tally)
            micro = self._believed(batch, micro, start, tally)
            outputs = ftis_loss(loss_inputs(batch, micro, policy, start), ftis)
            add_micro_batch(batch, micro, start, outputs, tally)
            if not tally.offending:
                self._backward(batch, micro, ftis, old, outputs, tally)

    def _backward(
        self, batch: StepBatch, micro: MicroBatch, ftis: FtisConfig, old: dict[int, Tensor] | None,
        outputs: LossOutputs, tally: StepTally,
    ) -> None:  # fmt: skip
        """Gradients of what is kept, without a backward pass for filtered sequences where that is cheaper."""
        kept = [row for row in micro.rows if tally.keep.get(row, False)]
        if not kept:
            return
        # Forward once more for the kept ones costs one unit each; backward costs two for each filtered one.
        if len(kept) < 2 * (len(micro.rows) - len(kept)):
            micro = collate(batch.sequences, self._packs(batch, kept), pad_id=self._pad_id, device=self._device)
            policy = self._score(micro)
            start = policy.detach() if old is None else _pad([old[row] for row in micro.rows], policy.shape[1])
            outputs = ftis_loss(loss_inputs(batch, micro, policy, start), ftis)
        outputs.loss.backward()

    def _believed(self, batch: StepBatch, micro: MicroBatch, old: Tensor, tally: StepTally) -> MicroBatch:
        """The micro-batch without the tokens of sequences whose claim is not to be believed."""
        doubted = disbelieved(batch, micro, old, self._claim_bound)
        tally.disbelieved.update(compress(micro.rows, doubted.tolist()))
        return replace(micro, loss_mask=micro.loss_mask & ~doubted.unsqueeze(1))

    @torch.no_grad()
    def measure_mismatch(self, batch: StepBatch, tally: StepTally) -> None:
        """Engine against trainer on a few own sequences."""
        rows = [row for row, own in enumerate(batch.own) if own][:MISMATCH_SEQUENCES]
        for micro in self._micro_batches(batch, rows):
            add_mismatch(batch, micro, self._score(micro), tally)

    def _micro_batches(self, batch: StepBatch, rows: Sequence[int]) -> list[MicroBatch]:
        packs = self._packs(batch, rows)
        parts = split_rows([pack_length(batch.sequences, pack) for pack in packs], self.budget)
        return [
            collate(batch.sequences, [packs[i] for i in part], pad_id=self._pad_id, device=self._device)
            for part in parts
        ]

    def _packs(self, batch: StepBatch, rows: Sequence[int]) -> list[tuple[int, ...]]:
        if not self._score.shares_prompts:
            return [(row,) for row in rows]
        return pack_rows(batch.sequences, rows, hidden=self._score.hidden, budget=self.budget)


def _pad(rows: Sequence[Tensor], width: int) -> Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
