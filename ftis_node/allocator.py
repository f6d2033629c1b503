"""glibc's allocator, set up for tensors. Call before torch is imported."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST = 2**31 - 1 - 4096


def tune_malloc() -> bool:
    """Keep freed big blocks on the heap instead of giving them back to the kernel at every free.

    Every activation tensor above 128 KiB is otherwise mapped and zeroed anew at each allocation, which
    costs more than the arithmetic of a small model. Linux with glibc only; returns whether it was done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL("libc.so.6")
    return bool(libc.mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(libc.mallopt(M_TRIM_THRESHOLD, LARGEST))


def trim_malloc() -> None:
    """Give free memory back, once a round: the heap that ``tune_malloc`` keeps would otherwise fragment and grow."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
