"""Log-probs of given tokens without the logits of all of them.

The output head is applied to a few positions at a time, forward and backward, so that memory holds one
chunk of ``[positions, vocabulary]`` logits instead of ``[batch, tokens, vocabulary]``. Only hidden states
that predict a completion token go through the head at all.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ftis_node.errors import ModelError
from ftis_node.training.collate import MicroBatch, TrainingSequence, collate
from ftis_node.training.head import TokenLogprobs

log = logging.getLogger(__name__)

CHUNK_LOGITS = 16 * 1024 * 1024
"""Logits in one chunk: 64 MiB in float32."""

CHECK_TOLERANCE = 1e-3
SHARING_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


class CompletionScorer:
    """Computes ``logits / temperature - logsumexp`` over the full vocabulary in float32, per completion token."""

    def __init__(self, model: nn.Module, *, temperature: float) -> None:
        self._model: Any = model
        self._temperature = temperature
        causal = _causal_model(model)
        self._body: Any = causal.base_model if causal.base_model is not causal else None
        self._head: Any = causal.get_output_embeddings()
        config = causal.config.get_text_config()
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._scale: float = _logit_scale(config)
        if self._body is None or self._head is None:
            raise ModelError(f"{type(causal).__name__}: has no separate output head, so it can't be scored in chunks")
        self._check()
        self.hidden = int(config.hidden_size)
        self.shares_prompts = self._can_share(config)

    def __call__(self, batch: MicroBatch) -> Tensor:
        """Log-probs [S, T] float32, with gradient where enabled; padded positions hold 0."""
        positions = {} if batch.position_ids is None else {"position_ids": batch.position_ids}
        hidden = self._body(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False, **positions
        ).last_hidden_state
        rows, columns = batch.loss_mask.nonzero(as_tuple=True)
        states = hidden[batch.pack_of[rows], batch.gather[rows, columns]]
        picked = self._token_logprobs(states, batch.targets[rows, columns])
        return torch.zeros(batch.loss_mask.shape, device=picked.device).index_put((rows, columns), picked)

    def _token_logprobs(self, states: Tensor, targets: Tensor) -> Tensor:
        """states [N, H], targets [N] -> [N]."""
        vocabulary = self._head.weight.shape[0] if hasattr(self._head, "weight") else self._head.out_features
        size = max(1, CHUNK_LOGITS // int(vocabulary))
        if type(self._head) is nn.Linear and self._softcap is None:
            factor = self._scale / self._temperature
            arguments = (states, self._head.weight, self._head.bias, targets, factor, size)
            picked: Tensor = TokenLogprobs.apply(*arguments)
            return picked
        parts = []
        for start in range(0, len(targets), size):
            chunk, wanted = states[start : start + size], targets[start : start + size]
            if torch.is_grad_enabled() and len(targets) > size:
                # An adapter on the head, or a soft cap: autograd knows how. The logits are worked out again in
                # the backward pass, one chunk at a time.
                part = checkpoint(self._chunk, chunk, wanted, use_reentrant=False)
            else:
                part = self._chunk(chunk, wanted)
            parts.append(part)
        return torch.cat(parts) if parts else states.new_zeros(0, dtype=torch.float32)

    def _chunk(self, states: Tensor, targets: Tensor) -> Tensor:
        logits = self._head(states).float() * self._scale
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        logits = logits / self._temperature
        return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - torch.logsumexp(logits, dim=1)

    @torch.no_grad()
    def _check(self) -> None:
        """Compare with the model's own logits once, so that an unknown architecture is never scored wrongly."""
        device = next(self._model.parameters()).device
        ids = torch.arange(4, device=device).unsqueeze(0)
        mask = torch.ones_like(ids)
        own = (
            self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()[0, :-1] / self._temperature
        )
        expected = torch.log_softmax(own, dim=-1).gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1)
        hidden = self._body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[0, :-1]
        actual = self._token_logprobs(hidden, ids[0, 1:])
        tolerance = CHECK_TOLERANCE if own.dtype == torch.float32 and hidden.dtype == torch.float32 else 0.05
        difference = (actual - expected).abs().max().item()
        if not difference <= tolerance * max(1.0, expected.abs().max().item()):
            raise ModelError(
                f"{type(self._model).__name__}: log-probs computed in chunks differ from the model's own by"
                f" {difference:.2g}: its output head does something that is not supported"
            )

    @torch.no_grad()
    def _can_share(self, config: Any) -> bool:
        """Whether completions of one prompt may stand behind it in one row: tried once, and compared.

        Not where a token sees a window only, or the past goes through a state.
        """
        sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        if sliding or getattr(config, "_attn_implementation", None) != "sdpa":
            return False
        device = next(self._model.parameters()).device
        sequences = [TrainingSequence((0, 1, 2), ids, (0.0,) * len(ids), 0.0) for ids in ((3, 4, 5), (6, 7))]
        alone = collate(sequences, [[0], [1]], pad_id=0, device=device)
        packed = collate(sequences, [[0, 1]], pad_id=0, device=device)
        try:
            expected, actual = self(alone), self(packed)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            log.info("completions can't share their prompt in this model: %s", error)
            return False
        scale = max(1.0, expected.abs().max().item())
        # Away from rounding: a wrong mask is off by far more.
        return bool((actual - expected).abs().max().item() <= SHARING_TOLERANCE[hidden_dtype(self._body)] * scale)


def hidden_dtype(body: Any) -> torch.dtype:
    return next(iter(body.parameters())).dtype


def _causal_model(model: Any) -> Any:
    """The transformers model inside a peft wrapper, adapters still in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _logit_scale(config: Any) -> float:
    """What some architectures multiply their logits with (Cohere) or divide them by (Granite)."""
    scaling = getattr(config, "logits_scaling", None)
    if scaling is not None:
        return 1.0 / float(scaling)
    return float(getattr(config, "logit_scale", None) or 1.0)
