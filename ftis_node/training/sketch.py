"""Gradients made small, so that several can be kept and compared.

A count sketch (Charikar, Chen, Farach-Colton 2002): every entry gets a random sign and is added to one of ``BUCKETS``
sums. It is linear, and inner products are kept: the cosine of two sketches is that of the gradients up to an error
with a standard deviation of about ``1 / sqrt(BUCKETS)`` = 0.002, whatever the model's size.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

BUCKETS = 2**18
CHUNK = 2**24
SEED = 20_260_522


def sketch(gradients: Iterable[Tensor]) -> Tensor:
    """[BUCKETS] float32 from the gradients of a model's parameters, always in the same order."""
    buckets: Tensor | None = None
    generator: torch.Generator | None = None
    offset = 0
    for gradient in gradients:
        if buckets is None or generator is None:
            buckets = torch.zeros(BUCKETS, device=gradient.device)
            generator = torch.Generator(gradient.device).manual_seed(SEED)
        for part in gradient.detach().reshape(-1).split(CHUNK):
            signs = torch.randint(0, 2, part.shape, dtype=torch.int8, device=part.device, generator=generator)
            signed = part.float() * (2 * signs - 1)
            # What comes next goes on where this ends, so that small tensors don't all share the first buckets.
            padded = torch.nn.functional.pad(signed, (offset, -(offset + len(part)) % BUCKETS))
            buckets += padded.view(-1, BUCKETS).sum(dim=0)
            offset = (offset + len(part)) % BUCKETS
    if buckets is None:
        raise ValueError("no parameter has a gradient")
    return buckets


def cosine(one: Tensor, other: Tensor) -> float | None:
    """Of two sketches; None where one is zero or not finite."""
    norms = (one.norm() * other.norm()).item()
    if not 0 < norms < float("inf"):
        return None
    return max(-1.0, min(1.0, torch.dot(one, other).item() / norms))
