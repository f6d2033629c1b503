"""The output head and the log-prob of one token per position, in one function with a backward pass by hand.

Autograd would keep a chunk's logits, their exponentials and a gradient of the whole head per chunk. Here one
buffer of ``[positions, vocabulary]`` serves all chunks, forward and backward, and the head's gradient is summed
up in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class TokenLogprobs(torch.autograd.Function):
    """states [N, H], weight [V, H], bias [V] or None, targets [N] -> log-probs [N] float32.

    logits = (states weight^T + bias) * factor; result = logits[target] - logsumexp(logits).
    d result / d logits = onehot(target) - softmax(logits).
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, factor: float, positions: int
    ) -> Tensor:
        picked = torch.empty(len(targets), dtype=torch.float32, device=states.device)
        normalizers = torch.empty_like(picked)
        for start in range(0, len(targets), positions):
            part = slice(start, start + positions)
            logits = _logits(states[part], weight, bias, factor)
            at_target = logits.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            largest = logits.amax(dim=1)
            normalizers[part] = logits.sub_(largest.unsqueeze(1)).exp_().sum(dim=1).log_().add_(largest)
            picked[part] = at_target - normalizers[part]
        ctx.save_for_backward(states, weight, bias, targets, normalizers)
        ctx.factor, ctx.positions = factor, positions
        return picked

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, normalizers = ctx.saved_tensors
        (gradient,) = gradients
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_states = torch.empty_like(states) if needs_states else None
        d_weight = torch.zeros_like(weight) if needs_weight else None
        d_bias = torch.zeros_like(bias) if needs_bias else None
        for start in range(0, len(targets), ctx.positions):
            part = slice(start, start + ctx.positions)
            scale = (gradient[part] * ctx.factor).unsqueeze(1)
            d_logits = _logits(states[part], weight, bias, ctx.factor)
            d_logits.sub_(normalizers[part].unsqueeze(1)).exp_().mul_(-scale)
            d_logits.scatter_add_(1, targets[part].unsqueeze(1), scale)
            d_logits = d_logits.to(weight.dtype)
            if d_states is not None:
                torch.mm(d_logits, weight, out=d_states[part])
            if d_weight is not None:
                d_weight.addmm_(d_logits.t(), states[part])
            if d_bias is not None:
                d_bias.add_(d_logits.sum(dim=0))
        return d_states, d_weight, d_bias, None, None, None


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, factor: float) -> Tensor:
    logits = torch.nn.functional.linear(states, weight, bias).float()
    return logits if factor == 1.0 else logits.mul_(factor)
