"""The optimizer that a party chose: Adam without weight decay (F-TIS, design section 2, step 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from ftis_node.config import TrainingConfig
from ftis_node.errors import ModelError

BETAS = (0.9, 0.999)


def build_optimizer(parameters: Sequence[Parameter], training: TrainingConfig, learning_rate: float) -> Any:
    """Raises ModelError where the chosen one can't run here."""
    if training.optimizer == "adam":
        # Fused: no temporary copies of the weights, which with a large vocabulary are most of the memory.
        return torch.optim.Adam(parameters, lr=learning_rate, betas=BETAS, fused=True)
    if not torch.cuda.is_available():
        raise ModelError(f"training.optimizer = {training.optimizer!r}: needs a GPU; allowed here is adam")
    try:
        import bitsandbytes
    except ImportError as error:
        raise ModelError(
            f"training.optimizer = {training.optimizer!r}: bitsandbytes is not installed; pip install"
            " 'ftis-node[quantized]'"
        ) from error
    kinds = {"adam8bit": bitsandbytes.optim.Adam8bit, "paged-adam8bit": bitsandbytes.optim.PagedAdam8bit}
    return kinds[training.optimizer](parameters, lr=learning_rate, betas=BETAS, weight_decay=0.0)


def state_bytes(parameters: Sequence[Parameter], training: TrainingConfig) -> int:
    """What gradients and the optimizer's state will take beside the parameters."""
    count = sum(parameter.numel() for parameter in parameters)
    moments = {"adam": 8, "adam8bit": 2, "paged-adam8bit": 0}[training.optimizer]
    return count * (4 + moments)
