"""What fits into memory: measured before the first round, and made smaller when that was wrong.

``measure`` runs one forward and backward pass and looks at the peak; ``plan`` decides, purely, from the figures.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ftis_node.allocator import trim_malloc
from ftis_node.errors import ModelError

USABLE_SHARE = 0.8
"""Of what is free; the rest is for what is not foreseen here, like the generation's buffers."""

LARGEST_BUDGET = 16_384
"""Padded tokens in a micro-batch; larger ones are not faster."""

ENOUGH_ON_CPU = 768 * 2**20
"""Bytes of activations beyond which larger micro-batches are not faster on a CPU (SmolLM2-135M, 2 cores)."""

SMALLEST_BUDGET = 16
GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes. ``fixed`` is what a step holds beside the weights whatever its micro-batches (gradients, optimizer state,
    one chunk of logits); ``per_token`` what each padded token of a micro-batch adds; ``cache_per_token`` what a
    token of a completion in the making takes; ``enough`` what more of does not make a step faster."""

    available: int
    fixed: int
    per_token: float
    cache_per_token: int
    enough: float


@dataclass(frozen=True)
class MemoryPlan:
    """``micro_batch_tokens`` and ``decode_rows`` as this machine can hold them; ``text`` says it in words."""

    micro_batch_tokens: int
    decode_rows: int
    text: str


def plan(needs: MemoryNeeds, *, longest: int, micro_batch_tokens: int | None, decode_rows: int) -> MemoryPlan:
    """Budgets for sequences of at most ``longest`` tokens.

    ``micro_batch_tokens`` is what the party configured, None to choose; ``decode_rows`` the most rows to decode.
    Raises ModelError when not even one sequence fits, and says what to change.
    """
    usable = USABLE_SHARE * needs.available
    one = needs.fixed + needs.per_token * longest
    if one > usable:
        raise ModelError(
            f"this configuration needs {one / GIB:.1f} GiB beside the model's weights to train on one sequence of"
            f" {longest} tokens ({needs.fixed / GIB:.1f} for gradients and optimizer), and {usable / GIB:.1f} GiB can"
            " be used: take a smaller model, LoRA (--set lora.rank=16), --set training.gradient_checkpointing=on, or a"
            " run with shorter completions"
        )
    budget = micro_batch_tokens
    if budget is None:
        budget = int(min(usable - needs.fixed, needs.enough) / max(needs.per_token, 1.0))
        budget = max(longest if longest < LARGEST_BUDGET else SMALLEST_BUDGET, min(LARGEST_BUDGET, budget))
    rows = max(1, min(decode_rows, int(usable / max(1, needs.cache_per_token * longest))))
    text = (
        f"micro-batches of {budget:,} tokens, {rows} completions at once; a step takes about"
        f" {(needs.fixed + needs.per_token * min(budget, max(longest, budget))) / GIB:.1f} of"
        f" {needs.available / GIB:.1f} GiB free"
    )
    return MemoryPlan(budget, rows, text)


def measure(
    *, device: torch.device, fixed: int, cache_per_token: int, tokens: int, pass_over: Callable[[int], None]
) -> MemoryNeeds:
    """Run ``pass_over``, a forward and backward pass over so many tokens, and look at the peaks.

    A first pass makes the gradients, which are part of ``fixed``; two more, of different lengths, tell what each token
    takes and what every pass takes. Raises ModelError when that does not fit.
    """
    available = available_bytes(device)
    few = max(2, tokens // 4)
    try:
        pass_over(few)
        trim_malloc()  # what loading the model left free would hide what the passes take
        before = _reset_peak(device)
        pass_over(few)
        small = _peak(device) - before
        pass_over(tokens)
        large = _peak(device) - before
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"a first pass over {tokens} tokens does not fit into the {available / GIB:.1f} GiB that are free: take a"
            " smaller model, LoRA (--set lora.rank=16), or --set training.gradient_checkpointing=on"
        ) from error
    per_token = max(0.0, (large - small) / max(1, tokens - few))
    every_pass = max(0, int(large - per_token * tokens))
    enough = ENOUGH_ON_CPU if device.type == "cpu" else math.inf
    return MemoryNeeds(available, fixed + every_pass, per_token, cache_per_token, enough)


def cache_bytes(model: torch.nn.Module) -> int:
    """Bytes of the key-value cache for one token of one sequence; 0 where the configuration doesn't tell."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
    layers, hidden = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not (heads and layers and hidden):
        return 0
    size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    return 2 * int(layers) * int(heads) * int(size) * next(model.parameters()).element_size()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not allocate."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and re.search(r"can't allocate memory|out of memory", str(error)) is not None


def available_bytes(device: torch.device) -> int:
    """Free memory of the device; on CPU within the limits of the container."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused)
    meminfo = Path("/proc/meminfo").read_text()
    match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    available = int(match[1]) * 1024 if match else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min(available, _container_limit()))


def _container_limit() -> int:
    """What the control group leaves; a large number without one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        return 2**63 if limit == "max" else int(limit) - used
    except (OSError, ValueError):  # no control groups of version 2 here
        return 2**63


def _reset_peak(device: torch.device) -> int:
    """Bytes held now, from which a peak is counted."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the kernel's own high-water mark starts anew
    except OSError:  # not allowed in some containers: the mark then is that of the process's whole life
        return _status_bytes("VmHWM")
    return _status_bytes("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status_bytes("VmHWM")


def _status_bytes(key: str) -> int:
    match = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0
