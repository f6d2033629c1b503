"""Sums of small numbers: the built-in task, small enough for models of 0.1 M parameters.

A prompt is ``3+14+8=``. A completion gives the answer directly, ``25``, or step by step: each line
adds the first two numbers of what is left, ``17+8=25``. What counts is the text behind the last
``=`` (all of it, if there is none): it must be the sum and nothing else.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property

from ftis_node.tasks.task import Item, Split

VERSION = 1
TEST_SHARE = 5
LONGEST_COMPLETION = 4096
_COMPLETION = re.compile(r"^(?:[0-9+]+=)*(?P<answer>[0-9]{1,12})$")


@dataclass(frozen=True)
class Addition:
    """Sums of ``terms`` numbers from ``smallest`` to ``largest``; one item in five, by hash, is a test item."""

    terms: int
    smallest: int
    largest: int
    split: Split

    @property
    def name(self) -> str:
        return "addition"

    @property
    def _range(self) -> int:
        return self.largest - self.smallest + 1

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        """The numbers of this split's items among all combinations of terms."""
        is_test = self.split == "test"
        return tuple(n for n in range(self._range**self.terms) if self._is_test(n) == is_test)

    def _is_test(self, number: int) -> bool:
        return is_test_expression("+".join(map(str, self._terms(number))))

    def _terms(self, number: int) -> list[int]:
        terms = []
        for _ in range(self.terms):
            number, term = divmod(number, self._range)
            terms.append(self.smallest + term)
        return terms

    @property
    def size(self) -> int:
        return len(self._numbers)

    @cached_property
    def data_hash(self) -> str:
        digest = hashlib.sha256(f"addition/{VERSION}/{self.terms}/{self.smallest}/{self.largest}/{self.split}".encode())
        for index in range(self.size):
            digest.update(self.item(index).prompt.encode())
        return digest.hexdigest()

    def item(self, index: int) -> Item:
        terms = self._terms(self._numbers[index])
        return Item(prompt="+".join(map(str, terms)) + "=", answer=str(sum(terms)), index=index)

    def reward(self, item: Item, completion_text: str) -> float:
        """1 if the final answer is right, else 0."""
        if len(completion_text) > LONGEST_COMPLETION:
            return 0.0
        match = _COMPLETION.match(completion_text.strip(" \n"))
        return float(match is not None and match["answer"] == item.answer)


def is_test_expression(expression: str) -> bool:
    """Whether, for example, ``3+14+8`` is a test item.

    The terms themselves are hashed, so that an item is on the same side in every task of this kind.
    """
    return hashlib.sha256(b"addition/" + expression.encode()).digest()[0] % TEST_SHARE == 0
