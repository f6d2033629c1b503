"""Columns of numbers as bytes: little-endian, or split into byte planes so that like compresses with like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ftis_node.errors import WireError

Numbers = npt.NDArray[np.int64]

LOGPROB_STEP = 1024
NOT_A_NUMBER = 0xFFFF


def pack(values: Sequence[int], dtype: str, what: str) -> bytes:
    """Whole numbers as ``dtype``. Raises WireError when one doesn't fit."""
    array = np.asarray(values, dtype=np.int64)
    limit = np.iinfo(np.dtype(dtype)).max
    if array.size and (array.min() < 0 or array.max() > limit):
        raise WireError(f"{what}: values from {array.min()} to {array.max()}; 0 to {limit} can be encoded")
    return array.astype(dtype).tobytes()


def unpack(data: bytes, dtype: str, what: str) -> Numbers:
    """The numbers of a packed column. Raises WireError when the bytes aren't whole numbers."""
    width = np.dtype(dtype).itemsize
    if len(data) % width:
        raise WireError(f"{what}: {len(data)} bytes are not a multiple of {width}")
    return np.frombuffer(data, dtype=dtype).astype(np.int64)


def pack_planes(values: npt.NDArray[Any], planes: int, what: str) -> bytes:
    """All lowest bytes, then all next ones, up to ``planes``. Raises WireError when a value doesn't fit."""
    array = values.astype(np.int64)
    if array.size and (array.min() < 0 or array.max() >= 256**planes):
        raise WireError(f"{what}: values from {array.min()} to {array.max()}; 0 to {256**planes - 1} can be encoded")
    return b"".join(((array >> (8 * plane)) & 0xFF).astype(np.uint8).tobytes() for plane in range(planes))


def unpack_planes(data: bytes, planes: int, count: int, what: str) -> Numbers:
    """``count`` numbers from their byte planes. Raises WireError when the length is another."""
    if len(data) != planes * count:
        raise WireError(f"{what}: {len(data)} bytes for {count} tokens; {planes * count} are needed")
    parts = np.frombuffer(data, dtype=np.uint8).reshape(planes, count).astype(np.int64)
    total: Numbers = sum((parts[plane] << (8 * plane) for plane in range(planes)), np.zeros(count, dtype=np.int64))
    return total


def quantise_logprobs(logprobs: npt.NDArray[np.float64]) -> Numbers:
    """To steps of 1/1024; below -63.998 saturates. Raises WireError for non-finite or positive values."""
    if not np.isfinite(logprobs).all() or (logprobs > 0).any():
        raise WireError("behavior_logprobs must be finite and not positive")
    return np.minimum(np.rint(-logprobs * LOGPROB_STEP), NOT_A_NUMBER - 1).astype(np.int64)


def logprobs_of(steps: Numbers) -> npt.NDArray[np.float64]:
    """The inverse; NOT_A_NUMBER becomes nan."""
    return np.where(steps == NOT_A_NUMBER, np.nan, -steps / LOGPROB_STEP)
