"""What a task is: items by number, and a reward that everybody computes alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Shot:
    """A solved example that stands before the question."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Item:
    """One problem. Example: ``Item(prompt="3+14+8=", answer="25")``.

    ``system`` goes into a chat template's system message. With ``raw`` the prompt is given to every model as it is,
    also to one with a chat template. ``index`` is the item's number in its task. A completion ends at the first of the
    strings ``stop`` (``stopping.py``).
    """

    prompt: str
    answer: str
    system: str = ""
    raw: bool = False
    index: int = 0
    stop: tuple[str, ...] = ()


class Task(Protocol):
    """A deterministic list of items with a checker.

    Items and rewards are the same in every process and on every machine; ``data_hash`` (64 hex
    digits) covers everything that determines them. Training and test items are disjoint.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def data_hash(self) -> str: ...

    def item(self, index: int) -> Item:
        """The item of a number from 0 to ``size - 1``."""
        ...

    def reward(self, item: Item, completion_text: str) -> float:
        """From 0 to 1; never raises, whatever the text, and takes bounded time."""
        ...
