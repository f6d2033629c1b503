"""Generation with a transformers model in this process: batched, with a key-value cache.

One prefill per prompt, shared by all its completions; finished rows leave the batch and their place in
the cache; waiting rows are taken in groups of similar prompt length. Only the logits of the last
position ever exist.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ftis_node.errors import OutOfMemoryError
from ftis_node.memory import is_out_of_memory
from ftis_node.rollout.engine import GenerationStats, Rollouts, completion_of, refuse_empty_prompts, stops_of
from ftis_node.rollout.sampling import row_uniforms, sample
from ftis_node.tasks.stopping import Stopper
from ftis_node.types import SamplingParams
from ftis_node.vocabulary import Vocabulary

log = logging.getLogger(__name__)

COMPACT_SHARE = 0.75
"""Finished rows are cut out of the cache when no more than this share of its rows is still running."""


@dataclass
class _Row:
    """A completion in the making."""

    prompt: int
    member: int
    uniforms: Tensor
    stops: tuple[str, ...]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


_Part = Sequence[tuple[int, int, int]]
"""Rows of one decode batch: prompt, its first member, and the member behind its last."""


def _halves(part: _Part) -> list[_Part]:
    """Two parts with half of the rows each."""
    left = sum(last - first for _, first, last in part) // 2
    one: list[tuple[int, int, int]] = []
    other: list[tuple[int, int, int]] = []
    for prompt, first, last in part:
        middle = min(last, first + left)
        left -= middle - first
        if middle > first:
            one.append((prompt, first, middle))
        if last > middle:
            other.append((prompt, middle, last))
    return [one, other]


class TransformersEngine:
    """Samples from ``model`` as it is at the time of the call; see ``RolloutEngine``."""

    def __init__(self, model: Any, vocabulary: Vocabulary, *, pad_id: int, decode_rows: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._pad_id = pad_id
        self.decode_rows = decode_rows
        self._device = next(model.parameters()).device
        self._ends = torch.tensor(vocabulary.eos_token_ids, device=self._device)
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model
        # Newer versions of transformers renamed the argument and warn about the old name.
        self._cache_argument = "cache" if "cache" in signature(causal.forward).parameters else "past_key_values"

    def sync(self) -> None:
        """It samples from the trainer's own model."""

    def lower_decode_rows(self, rows: int) -> None:
        self.decode_rows = min(self.decode_rows, rows)

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, count: int, sampling: SamplingParams, max_tokens: int, seed: int,
        stops: Sequence[tuple[str, ...]] = (),
    ) -> Rollouts:  # fmt: skip
        refuse_empty_prompts(prompts)
        started = time.monotonic()
        rows = [
            [
                _Row(prompt, member, row_uniforms(seed, prompt * count + member, max_tokens), ends)
                for member in range(count)
            ]
            for prompt, ends in enumerate(stops_of(prompts, stops))
        ]
        steps, row_steps = 0, 0
        with self._generating():
            pending = self._parts(prompts, count)
            while pending:
                part = pending.pop()
                members = [row for prompt, first, last in part for row in rows[prompt][first:last]]
                done = self._try_decode([prompts[prompt] for prompt, _, _ in part], part, members, sampling, max_tokens)
                if done is None:
                    pending += _halves(part)
                else:
                    steps, row_steps = steps + done[0], row_steps + done[1]
        completions = tuple(
            tuple(completion_of(self._vocabulary, row.token_ids, row.logprobs, row.stops) for row in group)
            for group in rows
        )
        tokens = sum(len(completion.token_ids) for group in completions for completion in group)
        stats = GenerationStats(tokens, time.monotonic() - started, row_steps / steps if steps else 0.0)
        return Rollouts(completions, stats)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._model.train(training)

    def _parts(self, prompts: Sequence[tuple[int, ...]], count: int) -> list[_Part]:
        """Decode batches as lists of (prompt, first member, end): prompts of similar length together."""
        parts: list[list[tuple[int, int, int]]] = []
        free = 0
        for prompt in sorted(range(len(prompts)), key=lambda prompt: len(prompts[prompt])):
            first = 0
            while first < count:
                if free == 0:
                    parts.append([])
                    free = self.decode_rows
                last = min(count, first + free)
                parts[-1].append((prompt, first, last))
                free -= last - first
                first = last
        return [*parts]

    def _try_decode(
        self, prompts: Sequence[tuple[int, ...]], part: _Part, rows: list[_Row], sampling: SamplingParams,
        max_tokens: int,
    ) -> tuple[int, int] | None:  # fmt: skip
        """``_decode``, or None with the rows as they were when memory ran out; fewer are decoded at once from then on.

        Raises OutOfMemoryError when a single row doesn't fit.
        """
        try:
            return self._decode(prompts, part, rows, sampling, max_tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(rows) == 1:
                raise OutOfMemoryError(
                    f"one completion of up to {max_tokens} tokens does not fit into memory: use a smaller model"
                ) from error
        for row in rows:
            row.token_ids.clear()
            row.logprobs.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self.lower_decode_rows(max(1, len(rows) // 2))
        log.warning("out of memory: %d completions are made at the same time from now on", self.decode_rows)
        return None

    def _decode(
        self, prompts: Sequence[tuple[int, ...]], part: _Part, rows: list[_Row],
        sampling: SamplingParams, max_tokens: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Fill the rows of one decode batch; returns decode steps and the sum of rows over them."""
        cache, mask, logits = self._prefill(prompts, [last - first for _, first, last in part])
        uniforms = torch.stack([row.uniforms for row in rows]).to(self._device)
        alive = list(range(len(rows)))  # cache row -> index in rows
        finished = torch.zeros(len(rows), dtype=torch.bool, device=self._device)
        stoppers = [Stopper(row.stops) if row.stops else None for row in rows]
        row_steps = 0
        for step in range(max_tokens):
            tokens, logprobs = sample(logits, uniforms[:, step], sampling)
            running = (~finished).tolist()
            stopped = [False] * len(alive)
            for place, token, logprob in zip(range(len(alive)), tokens.tolist(), logprobs.tolist(), strict=True):
                if running[place]:
                    row, stopper = rows[alive[place]], stoppers[alive[place]]
                    row.token_ids.append(token)
                    row.logprobs.append(logprob)
                    stopped[place] = stopper is not None and stopper.feed(self._vocabulary.bytes_of(token))
            row_steps += sum(running)
            finished |= torch.isin(tokens, self._ends)
            if any(stopped):
                finished |= torch.tensor(stopped, device=self._device)
            left = int((~finished).sum())
            if left == 0 or step + 1 == max_tokens:
                return step + 1, row_steps
            if left <= COMPACT_SHARE * len(alive):
                keep = (~finished).nonzero().flatten()
                cache.batch_select_indices(keep)
                alive = [alive[i] for i in keep.tolist()]
                tokens, mask, uniforms, finished = tokens[keep], mask[keep], uniforms[keep], finished[keep]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            output = self._model(
                input_ids=tokens.unsqueeze(1),
                attention_mask=mask,
                position_ids=mask.sum(dim=1, keepdim=True) - 1,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: cache},
            )
            logits = output.logits[:, -1]
        return max_tokens, row_steps

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], repeats: Sequence[int]
    ) -> tuple[DynamicCache, Tensor, Tensor]:
        """One forward pass per prompt, its cache repeated for its completions; left-padded."""
        width = max(map(len, prompts))
        input_ids = torch.tensor([[self._pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        input_ids, mask = input_ids.to(self._device), mask.to(self._device)
        cache = DynamicCache(config=self._model.config)
        output = self._model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        spread = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(repeats)).to(self._device)
        cache.batch_select_indices(spread)
        return cache, mask[spread], output.logits[:, -1][spread]
