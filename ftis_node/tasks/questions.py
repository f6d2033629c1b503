"""Tasks that are a list of questions with answers: from a file, or from a data set of the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ftis_node.tasks.answer_format import AnswerFormat
from ftis_node.tasks.checker import AnswerChecker
from ftis_node.tasks.checks import MathCheck
from ftis_node.tasks.task import Item, Shot

VERSION = 2


@dataclass(frozen=True)
class Questions:
    """Answers are compared as mathematical expressions, or as text with ``math = False``."""

    name: str
    questions: Sequence[Shot]
    format: AnswerFormat
    checker: AnswerChecker
    math: bool = True

    @property
    def size(self) -> int:
        return len(self.questions)

    @cached_property
    def data_hash(self) -> str:
        """Over the prompts as they are asked, and the answers."""
        digest = hashlib.sha256(f"questions/{VERSION}/{self.format.name}/{self.math}\n".encode())
        for index in range(self.size):
            item = self.item(index)
            digest.update(json.dumps([item.system, item.prompt, item.answer, item.stop]).encode() + b"\n")
        return digest.hexdigest()

    def item(self, index: int) -> Item:
        question = self.questions[index]
        return self.format.item(question.question, question.answer, index)

    def reward(self, item: Item, completion_text: str) -> float:
        """1 for the right answer in the right form, else 0."""
        answer = self.format.answer_of(completion_text)
        if answer is None:
            return 0.0
        if answer == item.answer:
            return 1.0
        if not self.math:
            return float(_folded(answer) == _folded(item.answer))
        return float(self.checker.is_right(MathCheck(expected=item.answer, answer=answer)))


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
