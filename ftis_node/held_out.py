"""Which prompts a node keeps for measuring and never trains on. Pure.

One item in ``SHARE`` is held out, by a hash of the node's own seed: nobody else knows which. Own groups for such
items are not made, peers' groups for them are not used. A task too small to spare any has none.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SHARE = 64
SMALLEST_TASK = 1024
DOMAIN = b"ftis-node held-out prompts 1\0"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """``active`` is False where nothing is measured: then nothing is held out either."""

    seed: int
    active: bool = True

    def contains(self, task: str, size: int, index: int) -> bool:
        """Whether item ``index`` of a task of ``size`` items is held out."""
        if not self.active or size < SMALLEST_TASK:
            return False
        packed = struct.pack(">QQ", self.seed, index)
        digest = hashlib.sha256(DOMAIN + packed + task.encode()).digest()
        return int.from_bytes(digest[:8], "big") % SHARE == 0

    def draw(self, task: str, size: int, *, nonce: int) -> Iterator[int]:
        """Held-out items in a random order that ``nonce`` decides; ends when so many tries found no more."""
        if not self.active or size < SMALLEST_TASK:
            return
        source = random.Random(f"{self.seed} {nonce} {task}")
        seen = set()
        for _ in range(SHARE * 1000):
            index = source.randrange(size)
            if index not in seen and self.contains(task, size, index):
                seen.add(index)
                yield index
