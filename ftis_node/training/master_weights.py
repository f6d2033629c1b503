"""Float32 master weights for a model that computes in a shorter format.

A bfloat16 weight has 8 bits of precision: steps of 1e-6 would vanish in it. The optimizer therefore
works on float32 copies, and the model gets their rounded values. A float32 model is its own master.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


class MasterWeights:
    """``parameters`` is what the optimizer works on."""

    def __init__(self, trained: Sequence[Parameter]) -> None:
        self._trained = list(trained)
        self._shared = all(parameter.dtype == torch.float32 for parameter in self._trained)
        self.parameters: list[Parameter] = (
            self._trained if self._shared else [Parameter(p.detach().float()) for p in self._trained]
        )

    def gather_gradients(self) -> None:
        """Move the model's gradients to the masters."""
        if self._shared:
            return
        for master, parameter in zip(self.parameters, self._trained, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        if self._shared:
            return
        for master, parameter in zip(self.parameters, self._trained, strict=True):
            parameter.copy_(master)

    def state(self) -> list[Tensor]:
        """For a checkpoint: empty if the model is its own master."""
        return [] if self._shared else [master.detach() for master in self.parameters]

    @torch.no_grad()
    def load(self, state: Sequence[Tensor]) -> None:
        """Take the masters of a checkpoint. Raises ValueError when they belong to another model."""
        if len(state) != (0 if self._shared else len(self.parameters)):
            raise ValueError(f"{len(state)} master weights are stored, {len(self.parameters)} are needed")
        for master, stored in zip(self.parameters, state, strict=False):
            master.copy_(stored)
