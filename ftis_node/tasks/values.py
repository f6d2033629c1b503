"""Answers that are plain values: numbers, numbers of another base, ratios, and lists of them.

A plain value is read and not evaluated, so ``3+4`` isn't one, whatever it comes to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ftis_node.tasks.notation import closing_brace
from ftis_node.tasks.units import CURRENCY, NO_UNIT, UNITS, Unit, read_unit

_GROUPED = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = rf"(?:(?:{_GROUPED})(?:\.\d*)?|\.\d+)"
_SIGNED = rf"[+-]? ?{_DECIMAL}"
_POWER_OF_TEN = (
    r"(?:[eE](?P<e>[+-]?\d{1,4})| ?(?:\\times|\\cdot|[*x]) ?10 ?\^ ?(?:\{ ?(?P<t1>[+-]?\d{1,4}) ?\}|(?P<t2>-?\d{1,4})"
    r"|\((?P<t3>-?\d{1,4})\)))"
)
_PART = rf"(?:\{{ ?(?P<{{0}}1>{_SIGNED}) ?\}}|(?P<{{0}}2>\d))"
_FRAC = r"\\frac ?" + _PART.replace("{0}", "a") + " ?" + _PART.replace("{0}", "b")
_SLASH = rf"[({{]?(?P<a3>{_DECIMAL})[)}}]? ?/ ?[({{]?(?P<b3>{_SIGNED})[)}}]?"
_MIXED = rf"(?P<whole>\d+) ?(?:{_FRAC}|(?<= )(?P<a3>\d+) ?/ ?(?P<b3>\d+))"
_REPEATING = r"(?P<before>\d*)\.(?P<fixed>\d*)\\overline ?\{(?P<again>\d+)\}"
_SHAPES = [re.compile(shape) for shape in (
    _MIXED, _FRAC, _SLASH, _REPEATING, rf"(?P<decimal>{_DECIMAL}){_POWER_OF_TEN}", rf"(?P<decimal>{_DECIMAL})",
)]  # fmt: skip
_FRONT = re.compile(rf"(?P<c1>[{CURRENCY}]?) ?(?P<sign>[+-]?) ?(?P<c2>[{CURRENCY}]?) ?")
_NAMED = re.compile(r"(?P<name>\\?[A-Za-z]+(?:_\{?\w+\}?)?|[A-Za-z]\([a-z0-9]\)) ?= ?(?=[^=])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|textrm) ?\{")
_BASED = re.compile(
    r"(?P<digits>-? ?[0-9A-Fa-f]+(?:[ ,][0-9A-Fa-f]{3})*)"
    r" ?(?:_ ?(?P<bare>\d)|_ ?\{ ?\(?(?P<braced>\w+)\)? ?\}|,? ?\(?(?:in )?base[ -](?P<worded>\w+)\)?)"
)
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"}  # fmt: skip
_SEPARATOR = re.compile(r" ?[,;] ?(?:(?:and|or) )?| (?:and|or) ")
_BRACKETS = {("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")}
_RATIO = re.compile(rf"{_DECIMAL}(?: ?: ?{_DECIMAL})+|{_DECIMAL}(?: to {_DECIMAL})+")


@dataclass(frozen=True)
class Number:
    """``undone``: written as a fraction that is a whole number."""

    value: Fraction
    unit: Unit = NO_UNIT
    name: str = ""
    undone: bool = False
    digits: str = ""


@dataclass(frozen=True)
class Based:
    """Digits of a number in a base that is named."""

    digits: str
    base: str


@dataclass(frozen=True)
class Several:
    """``brackets`` are two characters, ``:`` for a ratio, or empty for a list or set without order."""

    brackets: str
    items: tuple[Number | Based, ...]


Value = Number | Based | Several


def read_value(text: str, *, gold: bool) -> Value | None:
    """A tidied text as a plain value, or None. Of ``gold`` fewer letters are taken for units, more for variables."""
    text, outside = _without_text(text, in_formula=gold)
    return _single(text, in_formula=outside) or _several(text, in_formula=outside)


def same_value(gold: Value, answer: Value) -> bool:
    """Whether an answer is right where the right one is a plain value."""
    if isinstance(gold, Several):
        return _same_list(gold, answer if isinstance(answer, Several) else Several("", (answer,)))
    if isinstance(answer, Several):
        return len(answer.items) == 1 and answer.brackets != ":" and same_value(gold, answer.items[0])
    if isinstance(gold, Based):
        return answer == gold if isinstance(answer, Based) else answer.digits == gold.digits
    if isinstance(answer, Based):
        return answer.base == "10" and answer.digits == gold.digits
    if (answer.undone and not gold.undone) or (gold.name and answer.name and gold.name != answer.name):
        return False
    return gold.unit.fits(answer.unit) and _same_number(gold, answer)


def _same_number(gold: Number, answer: Number) -> bool:
    if gold.unit.percent == answer.unit.percent:
        return gold.value == answer.value
    # 50% is the number 1/2; and where percents were asked for, the sign is a unit that may be left out.
    return gold.value == answer.value or (
        gold.value == answer.value * 100 if gold.unit.percent else gold.value * 100 == answer.value
    )


def _same_list(gold: Several, answer: Several) -> bool:
    if gold.brackets != answer.brackets:
        return False
    if gold.brackets:
        return len(gold.items) == len(answer.items) and all(map(same_value, gold.items, answer.items))
    return all(any(same_value(right, item) for item in answer.items) for right in gold.items) and all(
        any(same_value(right, item) for right in gold.items) for item in answer.items
    )


def _without_text(text: str, *, in_formula: bool) -> tuple[str, bool]:
    """The text with the contents of ``\\text{}`` in their place, and whether letters may still be variables."""
    while match := _TEXT.search(text):
        end = closing_brace(text, match.end())
        if end < 0:
            break
        text = f"{text[: match.start()]} {text[match.end() : end]} {text[end + 1 :]}"
        in_formula = False
    return " ".join(text.split()), in_formula


def _single(text: str, *, in_formula: bool) -> Number | Based | None:
    named = _NAMED.match(text)
    name = named["name"] if named else ""
    text = text[named.end() :] if named else text
    while text[:1] + text[-1:] in ("()", "{}") and closing_brace(text, 1, text[0] + text[-1]) == len(text) - 1:
        text = text[1:-1].strip()
    based = _BASED.fullmatch(text)
    if based:
        base = (based["bare"] or based["braced"] or based["worded"]).lower()
        return Based(_digits(based["digits"]), _BASES.get(base, base))
    number = _number(text, in_formula=in_formula)
    return None if number is None else replace(number, name=name)


def _number(text: str, *, in_formula: bool) -> Number | None:
    front = _FRONT.match(text)
    assert front is not None  # all of it may be missing
    if front["c1"] and front["c2"]:
        return None
    currency = front["c1"] or front["c2"]
    for shape in _SHAPES:
        match = shape.match(text, front.end())
        if match is None:
            continue
        # Directly behind digits letters are factors more often than units.
        unit = read_unit(text[match.end() :], in_formula=in_formula)
        value = _value_of(match.groupdict())
        if value is None or unit is None:
            continue
        if currency:
            if unit.words & {UNITS[sign] for sign in CURRENCY} - {UNITS[currency]}:
                return None
            unit = Unit(unit.words | {UNITS[currency]}, unit.percent)
        undone = "a1" in match.groupdict() or "a3" in match.groupdict()
        undone = undone and value.denominator == 1 and not match.groupdict().get("whole")
        digits = _digits(front["sign"] + match[0])
        return Number(-value if front["sign"] == "-" else value, unit, undone=undone, digits=digits)
    return None


def _digits(text: str) -> str:
    text = text.replace(",", "").replace(" ", "").removeprefix("+").lower()
    sign = "-" if text.startswith("-") else ""
    return sign + (text.removeprefix("-").lstrip("0") or "0")


def _value_of(parts: dict[str, str | None]) -> Fraction | None:
    if parts.get("again"):
        before, fixed, again = (parts[key] or "" for key in ("before", "fixed", "again"))
        shift = 10 ** len(fixed)
        return Fraction(int((before + fixed) or 0), shift) + Fraction(int(again), shift * (10 ** len(again) - 1))
    if decimal := parts.get("decimal"):
        exponent = next((value for key in ("e", "t1", "t2", "t3") if (value := parts.get(key))), "0")
        return _plain(decimal) * Fraction(10) ** int(exponent)
    above, below = (
        next(value for key in "123" if (value := parts.get(f"{part}{key}"))) for part in "ab"
    )  # fmt: skip
    if _plain(below) == 0:
        return None
    fraction = _plain(above) / _plain(below)
    if whole := parts.get("whole"):
        return int(whole) + fraction if 0 < fraction < 1 else None
    return fraction


def _plain(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))


def _several(text: str, *, in_formula: bool) -> Several | None:
    if _RATIO.fullmatch(text):
        terms = [Number(_plain(term)) for term in re.split(r":| to ", text)]
        return Several(":", tuple(terms))
    named = re.match(r"\(?[A-Za-z](?: ?, ?[A-Za-z])*\)? ?(?:=|\\in) ?(?=[(\[\\])", text)
    text = text[named.end() :] if named else text
    brackets = ""
    if text.startswith("\\{") and text.endswith("\\}"):
        text = text[2:-2]
    elif text[:1] + text[-1:] == "{}" and closing_brace(text, 1) == len(text) - 1:
        text = text[1:-1]
    elif (text[:1], text[-1:]) in _BRACKETS:
        brackets = text[0] + text[-1]
        text = text[1:-1]
    items = list(_items(text, in_formula=in_formula))
    if not items or None in items or (len(items) == 1 and brackets):
        return None
    return Several(brackets, tuple(item for item in items if item is not None))


def _items(text: str, *, in_formula: bool) -> Iterator[Number | Based | None]:
    for part in _SEPARATOR.split(text.strip()):
        plus_minus = re.match(r"(?P<name>[A-Za-z] ?= ?)?\\pm ?", part)
        if plus_minus:
            for sign in "+-":
                yield _single((plus_minus["name"] or "") + sign + part[plus_minus.end() :], in_formula=in_formula)
        else:
            yield _single(part, in_formula=in_formula)
