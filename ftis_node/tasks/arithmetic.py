"""Sums and differences of small numbers: ``addition`` with another operation.

A prompt is ``17-8+5=`` and no partial result, from the left, is negative. A completion gives the answer directly,
``14``, or step by step: each line works out the first two numbers of what is left, ``9+5=14``. What counts is the text
behind the last ``=`` (all of it, if there is none): it must be the result and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ftis_node.tasks.addition import LONGEST_COMPLETION, is_test_expression
from ftis_node.tasks.task import Item, Split

VERSION = 1
OPERATIONS = ("+", "-", "+-")
_COMPLETION = re.compile(r"^(?:[0-9+-]+=)*(?P<answer>[0-9]{1,12})$")


@dataclass(frozen=True)
class Arithmetic:
    """``terms`` numbers from ``smallest`` to ``largest`` with one of ``operations`` between them ("+-": either).

    One item in five, by hash, is a test item; a sum is on the same side here as in ``addition``.
    """

    terms: int
    smallest: int
    largest: int
    operations: str
    split: Split

    @property
    def name(self) -> str:
        return "arithmetic"

    @property
    def combinations(self) -> int:
        """Items of both splits and what would be negative."""
        return int((self.largest - self.smallest + 1) ** self.terms * len(self.operations) ** (self.terms - 1))

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        """The numbers of this split's items among all combinations of terms and operations."""
        return tuple(number for number in range(self.combinations) if self._belongs(number))

    def _belongs(self, number: int) -> bool:
        terms = self._terms(number)
        return min(_partial_results(terms)) >= 0 and is_test_expression(_expression(terms)) == (self.split == "test")

    def _terms(self, number: int) -> list[tuple[str, int]]:
        """Operations, the first of which is ``+``, and numbers."""
        terms = []
        for position in range(self.terms):
            number, term = divmod(number, self.largest - self.smallest + 1)
            operations = self.operations if position else "+"
            number, operation = divmod(number, len(operations))
            terms.append((operations[operation], self.smallest + term))
        return terms

    @property
    def size(self) -> int:
        return len(self._numbers)

    @cached_property
    def data_hash(self) -> str:
        parameters = f"{self.terms}/{self.smallest}/{self.largest}/{self.operations}"
        digest = hashlib.sha256(f"arithmetic/{VERSION}/{parameters}/{self.split}".encode())
        for index in range(self.size):
            digest.update(self.item(index).prompt.encode())
        return digest.hexdigest()

    def item(self, index: int) -> Item:
        terms = self._terms(self._numbers[index])
        return Item(prompt=_expression(terms) + "=", answer=str(_partial_results(terms)[-1]), index=index)

    def reward(self, item: Item, completion_text: str) -> float:
        """1 if the final answer is right, else 0."""
        if len(completion_text) > LONGEST_COMPLETION:
            return 0.0
        match = _COMPLETION.match(completion_text.strip(" \n"))
        return float(match is not None and match["answer"] == item.answer)


def _expression(terms: list[tuple[str, int]]) -> str:
    return "".join(f"{operation}{number}" for operation, number in terms).removeprefix("+")


def _partial_results(terms: list[tuple[str, int]]) -> list[int]:
    return list(accumulate(number if operation == "+" else -number for operation, number in terms))
