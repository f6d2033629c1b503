"""Which prompts a node keeps for measuring and never trains on, and in which rounds it measures. Pure.

One prompt in ``SHARE`` is held out, by a hash of its text with the node's own seed: nobody else knows which, and a
question that a task has under several numbers is held out under all of them. Own groups for such prompts are not made,
peers' groups for them are not used. A task too small to spare any has none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SHARE = 64
SMALLEST_TASK = 1024
MOST_TRIES = 64 * SHARE
DOMAIN = b"ftis-node held-out prompts 1\0"


def is_measured(round_number: int, every: int, *, seed: int) -> bool:
    """Whether the use of peers' samples is measured in a round (from 1 on): in one of each ``every`` rounds, which the
    node's own seed chooses. Everybody can ask in which round a node is: who knew would do harm in the others only.
    """
    if every < 1 or round_number < 1:
        return False
    block, place = divmod(round_number - 1, every)
    return place == random.Random(f"{seed} measured {block}").randrange(every)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """``active`` is False where nothing is measured: then nothing is held out either."""

    seed: int
    active: bool = True

    def contains(self, task: str, size: int, prompt: str) -> bool:
        """Whether a prompt of a task of ``size`` items is held out."""
        if not self.active or size < SMALLEST_TASK:
            return False
        digest = hashlib.sha256(DOMAIN + f"{self.seed} {task}\0{prompt}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % SHARE == 0

    def draw(self, task: str, size: int, prompt_of: Callable[[int], str], *, nonce: int) -> Iterator[int]:
        """Items with distinct held-out prompts, in a random order that ``nonce`` decides; ends after ``MOST_TRIES``."""
        if not self.active or size < SMALLEST_TASK:
            return
        source = random.Random(f"{self.seed} {nonce} {task}")
        seen = set()
        for _ in range(MOST_TRIES):
            index = source.randrange(size)
            prompt = prompt_of(index)
            if prompt not in seen and self.contains(task, size, prompt):
                seen.add(prompt)
                yield index
