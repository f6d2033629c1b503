"""How a model is asked, and which part of its completion is the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ftis_node.tasks.notation import closing_brace
from ftis_node.tasks.task import Item, Shot

FormatName = Literal["think", "plain", "boxed"]

SYSTEM_PROMPT = (
    "You solve the problem that the user gives you. Think it through step by step between <think> and </think>,"
    " then write the final answer alone, without units or words around it, between <answer> and </answer>, and"
    " nothing else:\n<think>your reasoning</think>\n<answer>the answer</answer>"
)
LONGEST_COMPLETION = 100_000
LONGEST_ANSWER = 1_000
LONGEST_SYSTEM_PROMPT = 4_000
MOST_SHOTS = 16

_BLOCKS = re.compile(r"\s*<think>.*</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_BOX = "\\boxed"


@dataclass(frozen=True)
class AnswerFormat:
    """``think`` is the paper's: a system prompt, one ``<think>`` and one ``<answer>`` block, nothing outside.

    ``boxed`` is what models for mathematics are made for: no system prompt, and the answer is the last ``\\boxed{}``
    of any text. ``plain`` is for base and very small models: solved examples and the question as plain text, and the
    completion's first line is the answer. ``system`` takes the place of the format's own system prompt.
    A completion ends at the first of the strings ``stop``.
    """

    name: FormatName
    shots: tuple[Shot, ...] = ()
    system: str | None = None
    stop: tuple[str, ...] = ()

    def item(self, question: str, answer: str, index: int) -> Item:
        """The prompt for a question."""
        if self.name == "plain":
            solved = "".join(f"{shot.question} {shot.answer}\n" for shot in self.shots)
            return Item(solved + question, answer, raw=True, index=index, stop=self.stop)
        system = self.system
        if system is None:
            system = SYSTEM_PROMPT if self.name == "think" else ""
        return Item(question, answer, system=system, index=index, stop=self.stop)

    def answer_of(self, completion_text: str) -> str | None:
        """The answer, or None where the form is wrong. Linear in the text."""
        if len(completion_text) > LONGEST_COMPLETION:
            return None
        answer: str | None
        if self.name == "think":
            answer = _answer_block(completion_text)
        elif self.name == "boxed":
            answer = _last_box(completion_text)
        else:
            lines: Sequence[str] = completion_text.strip().splitlines()
            answer = lines[0] if lines else None
        if answer is None:
            return None
        answer = answer.strip()
        return answer if answer and len(answer) <= LONGEST_ANSWER else None


def _answer_block(text: str) -> str | None:
    if "<think>" not in text:
        # Chat templates of models that always think end the prompt with it.
        text = "<think>" + text
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return None
    match = _BLOCKS.fullmatch(text)
    return match["answer"] if match else None


def _last_box(text: str) -> str | None:
    start = text.rfind(_BOX)
    if start < 0:
        return None
    behind = text[start + len(_BOX) :].lstrip(" ")
    end = closing_brace(behind, 1) if behind.startswith("{") else -1
    return behind[1:end] if end >= 0 else None
