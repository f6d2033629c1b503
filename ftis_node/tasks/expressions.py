"""Answers that are expressions: rewritten into LaTeX as math-verify reads it, and compared by it."""

from __future__ import annotations

import re
from typing import Any

from ftis_node.tasks.notation import closing_brace, tidied
from ftis_node.tasks.units import read_unit
from ftis_node.tasks.values import Several, read_value, same_value

_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp"
_REWRITES = [
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<!\\)\*"), r" \\cdot "),
    (re.compile(r">="), r" \\geq "),
    (re.compile(r"<="), r" \\leq "),
    (re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"(?<![\\A-Za-z])(?:pi|Pi|PI)(?![A-Za-z])"), r"\\pi "),
    (re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\\(?:text|mathrm) ?\{ ?(or|and) ?\}"), r" \1 "),
    (re.compile(r"\^ ?(-?\d+)"), r"^{\1}"),
    (re.compile(r"\\sqrt ?(\d+|[A-Za-z](?![A-Za-z])|\\pi)"), r"\\sqrt{\1}"),
]
_BRACKETED = re.compile(r"(?P<before>\\sqrt ?|\^ ?)\(")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|textrm) ?\{([^{}]*)\}")
_UNIT = re.compile(
    r" ?\\(?:text|mathrm|mbox|textrm) ?\{(?P<text>[^{}]*)\}(?P<power>\^\{?[23]\}?)?$"
    r"|(?P<words>(?<=[\w})]) [A-Za-z]{2,}(?:[ /][A-Za-z]{2,}){0,3}(?:\^\{?[23]\}?)?)$"
)
_LETTER = re.compile(r"\(?([A-Z])\)?")
_SUBSCRIPTED_DIGITS = re.compile(r"(?<![A-Za-z_\\{])\d+ ?_|\)_")
_RELATION = re.compile(r"\\leq|\\geq|<|>")
_NAME = re.compile(r"\(?(?:\\?[A-Za-z]+|[A-Za-z]\([a-z]\)|[A-Za-z](?: ?, ?[A-Za-z])+)\)? ?(?:=|\\in(?![a-z])) ?")
_VARIABLE = re.compile(r"[A-Za-z]|\\[a-z]+")
_UPWARD = ("<", r"\leq")
_FLIPPED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq"}


def same_answer(expected: str, answer: str) -> bool:
    """Whether an answer is right; see ``docs/write-a-task.md`` for the rules. May take for ever, and may raise."""
    gold_text, text = tidied(expected), tidied(answer)
    if not gold_text or not text:
        return False
    if gold_text == text:
        return True
    gold = read_value(gold_text, gold=True)
    if gold is not None:
        value = read_value(text, gold=False)
        if value is not None:
            return same_value(gold, value)
        # An interval of numbers may be written as inequalities; any other value has to be a value.
        if not (isinstance(gold, Several) and gold.brackets and _RELATION.search(rewritten(text))):
            return bool(re.fullmatch(r"[0-9A-Fa-f]+", text)) and _same_digits(gold, text)
    words = _words(gold_text)
    if words is not None:
        return words == _words(text)
    return _same_expression(rewritten(_without_unit(gold_text)), rewritten(_without_unit(text)))


def _same_digits(gold: Any, text: str) -> bool:
    return getattr(gold, "base", "") != "" and gold.digits == text.lower()


def _words(text: str) -> str | None:
    """A text in words, or None for a formula: four letters and more in a row are no product of variables."""
    plain = " ".join(_TEXT.sub(r"\1", text).split())
    letter = _LETTER.fullmatch(plain)
    if letter:
        return letter[1].casefold()
    if _WORDS.fullmatch(plain) and (plain != text or re.search("[A-Za-z]{4}", plain)):
        return plain.casefold()
    return None


def _without_unit(text: str) -> str:
    match = _UNIT.search(text)
    behind = match and (f" {match['text']}{match['power'] or ''}" if match["text"] else match["words"])
    if match and match.start() and behind and read_unit(behind, in_formula=not match["text"]) is not None:
        return text[: match.start()]
    return text


def rewritten(text: str) -> str:
    """What people type as LaTeX: ``2sqrt(3)``, ``x**2``, ``pi/2``."""
    for pattern, written in _REWRITES:
        text = pattern.sub(written, text)
    position = 0
    while match := _BRACKETED.search(text, position):
        position = match.end()
        end = closing_brace(text, position, "()")
        if end >= 0:
            text = f"{text[: position - 1]}{{{text[position:end]}}}{text[end + 1 :]}"
    return " ".join(text.split())


def _same_expression(gold: str, answer: str) -> bool:
    if _SUBSCRIPTED_DIGITS.search(gold) or _SUBSCRIPTED_DIGITS.search(answer):
        # math-verify looks past the subscript, which is the base.
        return gold.replace(" ", "") == answer.replace(" ", "")
    gold_range, answer_range = _as_interval(gold), _as_interval(answer)
    if gold_range and answer_range:
        return gold_range[0] == answer_range[0] and _verified(gold_range[1], answer_range[1])
    if gold_range or answer_range:
        gold, answer = (gold_range or ("", gold))[1], (answer_range or ("", answer))[1]
    if "=" not in gold:
        answer = _without_name(answer)
        if "=" in answer:  # of an equation math-verify would take one side
            return False
    return _verified(gold, answer)


def _without_name(text: str) -> str:
    named = _NAME.match(text)
    return text[named.end() :] if named else text


def _as_interval(text: str) -> tuple[str, str] | None:
    """Inequalities in one variable as ``(variable, intervals)``: ``2 < x`` is ``(2,\\infty)``."""
    if not _RELATION.search(text):
        return None
    parts = [_one_interval(part.strip()) for part in re.split(r" or |,", text)]
    variables = {part[0] for part in parts if part is not None}
    if None in parts or len(variables) != 1:
        return None
    return variables.pop(), r" \cup ".join(part[1] for part in parts if part is not None)


def _one_interval(text: str) -> tuple[str, str] | None:
    signs = _RELATION.findall(text)
    sides = [side.strip() for side in _RELATION.split(text)]
    if any(not side or "=" in side for side in sides):
        return None
    if len(signs) == 1:
        # One side is open to infinity: ``x < 2`` is ``-oo < x < 2``.
        if not _VARIABLE.fullmatch(sides[0]):
            sides, signs = sides[::-1], [_FLIPPED[signs[0]]]
        below = signs[0] in _UPWARD
        sides = [r"-\infty", *sides] if below else [r"\infty", *sides]
        signs = ["<", *signs] if below else [">", *signs]
    if len(signs) != 2 or len({sign in _UPWARD for sign in signs}) != 1:
        return None
    if signs[0] not in _UPWARD:
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    low, variable, high = sides
    if not _VARIABLE.fullmatch(variable) or _mentions(low, variable) or _mentions(high, variable):
        return None
    return variable, ("(" if signs[0] == "<" else "[") + f"{low},{high}" + (")" if signs[1] == "<" else "]")


def _mentions(bound: str, variable: str) -> bool:
    without_commands = bound if variable.startswith("\\") else re.sub(r"\\[a-z]+", "", bound)
    return variable in without_commands


def _verified(gold: str, answer: str) -> bool:
    from math_verify import verify

    return bool(verify(_parse(gold), _parse(answer), timeout_seconds=None, allow_set_relation_comp=True))


def _parse(text: str) -> Any:
    """The whole text as one expression: nothing is searched for in it."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    if closing_brace(text + "}", 0) != len(text):
        return []
    # Its units would take the m of 2m away.
    normal = NormalizationConfig(malformed_operators=True, nits=True)
    return parse(
        rf"\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0, normalization_config=normal)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
