"""One optimizer step of F-TIS on a batch of groups.

With one update per batch the old policy is the policy itself: its log-probs are the detached ones of the
same forward pass, and there is no separate scoring pass. Sequences without advantage cost nothing but a
place in the mean; a micro-batch in which all is filtered costs no backward pass.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ftis_node.config import FtisConfig, TrainingConfig
from ftis_node.errors import OutOfMemoryError
from ftis_node.memory import LARGEST_BUDGET, MemoryNeeds, cache_bytes, is_out_of_memory, measure
from ftis_node.training import guidance, threshold
from ftis_node.training.collate import TrainingGroup, TrainingSequence, collate
from ftis_node.training.guidance import OwnRates
from ftis_node.training.logprobs import CompletionScorer
from ftis_node.training.master_weights import MasterWeights
from ftis_node.training.optimizer import build_optimizer, state_bytes
from ftis_node.training.passes import Passes
from ftis_node.training.sketch import sketch
from ftis_node.training.step import (
    StepBatch,
    StepReport,
    StepTally,
    active_rows,
    group_report,
    lay_out,
    longest_own,
    peers_divergences,
    sequence_reports,
)
from ftis_node.training.threshold import History

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_TOKENS = 1024


@dataclass(frozen=True)
class _Update:
    """What one pass over the batch came to; ``skipped`` says why the weights stayed as they were."""

    tally: StepTally
    gradient_norm: float | None = None
    skipped: str | None = None


def default_learning_rate(*, lora: bool) -> float:
    """The paper's constant rates."""
    return 1e-4 if lora else 1e-6


class Trainer:
    """Owns the optimizer of one model."""

    def __init__(
        self, model: torch.nn.Module, *, training: TrainingConfig, ftis: FtisConfig, learning_rate: float,
        temperature: float, pad_id: int,
    ) -> None:  # fmt: skip
        self._model = model
        self._training = training
        self._ftis = ftis
        self._pad_id = pad_id
        self._device = next(model.parameters()).device
        self._score = CompletionScorer(model, temperature=temperature)
        self._passes = Passes(
            self._score, pad_id=pad_id, device=self._device, budget=training.micro_batch_tokens or LARGEST_BUDGET,
            claim_bound=training.claim_bound,
        )  # fmt: skip
        self._history = History()
        self._own_rates = OwnRates()
        self._masters = MasterWeights([p for p in model.parameters() if p.requires_grad])
        self._optimizer = build_optimizer(self._masters.parameters, training, learning_rate)
        if training.gradient_checkpointing == "on":
            _checkpoint_layers(model)

    @property
    def micro_batch_tokens(self) -> int:
        """Padded tokens in one forward pass, at most; halved when memory runs out."""
        return self._passes.budget

    @micro_batch_tokens.setter
    def micro_batch_tokens(self, tokens: int) -> None:
        self._passes.budget = tokens

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, master weights included where the model isn't float32, and what the filter knows."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "masters": self._masters.state(),
            "threshold": threshold.to_state(self._history),
            "own_rates": guidance.to_state(self._own_rates),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._masters.load(state["masters"])
        self._history = threshold.from_state(state.get("threshold"))
        self._own_rates = guidance.from_state(state.get("own_rates"))

    def observe_own(self, task: str, reward: float) -> None:
        """Of every own group its mean reward, before the step that it was sampled for."""
        self._own_rates = guidance.observe(self._own_rates, task, reward)

    def own_rate(self, task: str) -> float | None:
        """How often own completions of a task are right lately; None without guidance, or where too few were seen."""
        return None if self._ftis.guidance == "off" else self._own_rates.of(task)

    def needs(self, *, longest: int) -> MemoryNeeds:
        """Measure what a step takes: one forward and backward pass, no update."""
        tokens = min(longest, PROBE_TOKENS)
        state = self._optimizer.state_dict()["state"]
        fixed = 0 if state else state_bytes(self._masters.parameters, self._training)
        try:
            return measure(
                device=self._device, fixed=fixed, cache_per_token=cache_bytes(self._model), tokens=tokens,
                pass_over=self._pass_over,
            )  # fmt: skip
        finally:
            self._clear()

    def _pass_over(self, tokens: int) -> None:
        ids = tuple(i % 50 for i in range(tokens - 1))
        sequence = TrainingSequence((0,), ids, (0.0,) * len(ids), 0.0)
        micro = collate([sequence], [(0,)], pad_id=self._pad_id, device=self._device)
        with self._training_mode():
            self._score(micro).sum().backward()

    def step(self, groups: Sequence[TrainingGroup]) -> StepReport:
        """Learn from exactly these groups; each counts in the mean, whatever becomes of its sequences.

        When memory runs out, the update that it ran out in is done again in micro-batches of half the size, as often as
        needed. Raises OutOfMemoryError when single sequences don't fit.
        """
        batch = self._lay_out(groups)
        active, ftis = active_rows(batch), self._objective(batch)
        started = time.monotonic()
        old = None
        if self._training.update_epochs > 1:
            old = self._in_smaller_pieces(batch, lambda: self._passes.score_old(batch, active))
        scored = time.monotonic()
        update = self._updates(batch, active, ftis, old)
        tally = update.tally
        trained = time.monotonic()
        if tally.mismatch_tokens == 0:
            self._in_smaller_pieces(batch, lambda: self._passes.measure_mismatch(batch, tally))
        done = time.monotonic()
        if self._threshold_is_automatic:
            self._history = threshold.observe(self._history, peers_divergences(batch, tally))
        return StepReport(
            stepped=update.skipped is None,
            skipped_reason=update.skipped,
            loss=tally.loss,
            gradient_norm=update.gradient_norm,
            importance_weight=tally.weight / tally.tokens if tally.tokens else None,
            truncated_share=tally.truncated / tally.tokens if tally.tokens else None,
            clipped_share=tally.clipped / tally.tokens if tally.tokens else None,
            kl_threshold=_number(ftis),
            own_logprob_mismatch=tally.mismatch / tally.mismatch_tokens if tally.mismatch_tokens else None,
            groups=tuple(group_report(index, group, batch, tally) for index, group in enumerate(groups)),
            sequences=sequence_reports(batch, tally),
            offending=tuple(batch.positions[row] for row in sorted(tally.offending)),
            tokens_trained=tally.tokens,
            seconds_scoring=(scored - started) + (done - trained),
            seconds_training=trained - scored,
        )

    def _lay_out(self, groups: Sequence[TrainingGroup]) -> StepBatch:
        return lay_out(groups, self._training.advantage_norm, floor=self._ftis.guidance_floor)

    def _updates(
        self, batch: StepBatch, rows: Sequence[int], ftis: FtisConfig, old: dict[int, Tensor] | None
    ) -> _Update:
        """``update_epochs`` of them, or until one is skipped; returns the last that moved the weights, if any did."""
        last = _Update(StepTally(), skipped="no sequence has an advantage")
        for epoch in range(self._training.update_epochs if rows else 0):
            update = self._in_smaller_pieces(batch, lambda: self._update(batch, rows, ftis, old))
            if update.skipped is not None and epoch > 0:
                log.warning(
                    "update %d of %d on one batch is left out, those before it stay: %s",
                    epoch + 1, self._training.update_epochs, update.skipped,
                )  # fmt: skip
                return last
            last = update
            if update.skipped is not None:
                return last
        return last

    def gradient_sketch(self, groups: Sequence[TrainingGroup]) -> Tensor | None:
        """``sketch`` of the objective's gradient on these groups alone; None where there is none. Takes no step."""
        batch = self._lay_out(groups)
        return self._in_smaller_pieces(batch, lambda: self._sketch(batch))

    def _in_smaller_pieces(self, batch: StepBatch, work: Callable[[], T]) -> T:
        """``work`` must be free of effects until it can no longer run out of memory."""
        longest = max(sequence.length for sequence in batch.sequences)
        while True:
            try:
                with self._training_mode():
                    return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self._clear()
                if self.micro_batch_tokens <= longest:
                    raise OutOfMemoryError(
                        f"training on one sequence of {longest} tokens does not fit into memory: use a smaller model,"
                        " LoRA, or training.gradient_checkpointing = on"
                    ) from error
            # Out of the handler, whose traceback keeps the activations alive.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            self.micro_batch_tokens = max(self.micro_batch_tokens // 2, longest)
            log.warning("out of memory: the step is done again in micro-batches of %d tokens", self.micro_batch_tokens)

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Layers are only checkpointed in training mode; dropout is zero in either."""
        self._model.train(self._training.gradient_checkpointing == "on")
        try:
            yield
        finally:
            self._model.eval()

    def _sketch(self, batch: StepBatch) -> Tensor | None:
        tally = StepTally()
        self._accumulate(batch, active_rows(batch), self._objective(batch), None, tally)
        try:
            if tally.offending or not any(tally.keep.values()):
                return None
            return sketch(p.grad for p in self._model.parameters() if p.grad is not None)
        finally:
            self._clear()

    @property
    def _threshold_is_automatic(self) -> bool:
        return self._ftis.filters and self._ftis.kl_threshold == "auto"

    def _objective(self, batch: StepBatch) -> FtisConfig:
        """The configured one, with the threshold that is in force for this batch."""
        if not self._threshold_is_automatic:
            return self._ftis
        floor = threshold.floor_of(self._ftis.kl_estimator, longest_own(batch))
        number = threshold.threshold_of(self._history, quantile=self._ftis.kl_quantile, floor=floor)
        return replace(self._ftis, kl_threshold=number)

    def _update(
        self, batch: StepBatch, rows: Sequence[int], ftis: FtisConfig, old: dict[int, Tensor] | None
    ) -> _Update:
        """One optimizer step."""
        tally = StepTally()
        self._accumulate(batch, rows, ftis, old, tally)
        if tally.offending:
            return self._skip(tally, f"log-probs of {len(tally.offending)} sequences are not finite")
        if not any(tally.keep.values()):
            return self._skip(tally, "all sequences with an advantage are filtered or excluded")
        self._masters.gather_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self._masters.parameters, self._training.max_gradient_norm).item()
        if not (math.isfinite(norm) and math.isfinite(tally.loss)):
            return self._skip(tally, f"loss {tally.loss} or gradient norm {norm} is not finite")
        self._optimizer.step()
        self._masters.publish()
        self._clear()
        return _Update(tally, norm)

    def _accumulate(
        self, batch: StepBatch, rows: Sequence[int], ftis: FtisConfig, old: dict[int, Tensor] | None, tally: StepTally
    ) -> None:
        """The gradient of the loss over these rows into the model's parameters."""
        self._model.zero_grad(set_to_none=True)
        self._passes.accumulate(batch, rows, ftis, old, tally)

    def _skip(self, tally: StepTally, reason: str) -> _Update:
        self._clear()
        return _Update(tally, skipped=reason)

    def _clear(self) -> None:
        self._model.zero_grad(set_to_none=True)
        self._optimizer.zero_grad(set_to_none=True)


def _number(ftis: FtisConfig) -> float | None:
    return ftis.kl_threshold if ftis.filters and isinstance(ftis.kl_threshold, float) else None


def _checkpoint_layers(model: Any) -> None:
    # Newer versions of transformers renamed it and warn about the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
