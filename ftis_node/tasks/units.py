"""What may stand behind a number without changing it: a percent sign, a unit, the name of what was counted."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ALIASES = {
    "dollar": "$ usd dollar dollars bucks", "cent": "¢ cent cents", "euro": "€ eur euro euros",
    "pound sterling": "£ gbp", "yen": "¥ yen", "rupee": "₹ rupee rupees",
    "degree": "degree degrees deg", "celsius": "celsius", "fahrenheit": "fahrenheit",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres", "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres", "mile": "mi mile miles",
    "inch": "in inch inches", "foot": "ft foot feet", "yard": "yd yard yards",
    "g": "g gram grams", "kg": "kg kilogram kilograms", "mg": "mg milligram milligrams",
    "pound": "lb lbs pound pounds", "ounce": "oz ounce ounces",
    "l": "l liter liters litre litres", "ml": "ml milliliter milliliters millilitre millilitres",
    "s": "s sec secs second seconds", "minute": "min mins minute minutes", "h": "h hr hrs hour hours",
    "day": "day days", "week": "week weeks", "month": "month months", "year": "yr yrs year years",
    "mph": "mph", "kmh": "kmh kph", "pm": "pm", "am": "am", "unit": "unit units",
}  # fmt: skip
UNITS = {spelling: unit for unit, spellings in _ALIASES.items() for spelling in spellings.split()}
CURRENCY = "$€£¥₹"

_WORDS = """
    or and not nor no so but if maybe perhaps probably about around approximately approx roughly think guess hope
    believe sure unsure likely either is isn was are be the than to at by of etc wrong incorrect false true error
    equals equal plus minus times over divided multiplied added more less fewer mod modulo base point negative
    positive root power squared cubed factorial doubled tripled choose with remainder hundred hundreds thousand
    thousands million millions billion billions trillion trillions dozen dozens score half halves third thirds
    quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth
    tenths hundredth hundredths thousandth thousandths one two three four five six seven eight nine ten eleven
    twelve twenty thirty forty fifty sixty seventy eighty ninety sqrt log exp sin cos tan cot csc max frac cdot
"""
NOT_UNITS = frozenset(_WORDS.split())
"""Words that change the number, or doubt it."""

MOST_WORDS = 4
_PERCENT = re.compile(r"(?:%|percent|per cent|pct|percentage points?)", re.IGNORECASE)
_DEGREES = re.compile(r"\^\\circ ?(?P<scale>[CF]?)")
_WORD = re.compile(r"(?P<join> ?/ ?| per | ?\\cdot | )?(?P<word>[A-Za-z]+\.?|[€£¥₹¢$])(?:\^\{?(?P<power>[23])\}?)?")


@dataclass(frozen=True)
class Unit:
    """``words`` in one spelling each; empty when nothing is said."""

    words: frozenset[str] = frozenset()
    percent: bool = False

    def fits(self, other: Unit) -> bool:
        """Whether they can be the same: who leaves something out says nothing against it."""
        if (self.percent and other.words) or (other.percent and self.words):
            return False
        return self.words <= other.words or other.words <= self.words


NO_UNIT = Unit()


def read_unit(text: str, *, in_formula: bool) -> Unit | None:
    """The unit that a text from directly behind a number on is, or None.

    ``in_formula``: outside of ``\\text{}`` letters may be variables, so only what can't be taken for them is a unit.
    """
    stripped = text.strip()
    if not stripped:
        return NO_UNIT
    if _PERCENT.fullmatch(stripped):
        return Unit(percent=True)
    degrees = _DEGREES.fullmatch(stripped)
    if degrees:
        scale = {"C": {"celsius"}, "F": {"fahrenheit"}}.get(degrees["scale"], set())
        return Unit(frozenset({"degree", *scale}))
    spaced = text[0] == " "
    words: set[str] = set()
    power, position = "", 0
    for _ in range(MOST_WORDS):
        match = _WORD.match(stripped, position)
        # Between words something stands; before the first one nothing but a space.
        if match is None or bool(match["join"]) != bool(position):
            return None
        word = match["word"].rstrip(".").lower()
        if not _allowed(word, spaced=spaced, in_formula=in_formula):
            return None
        if word in ("square", "sq", "cubic"):
            power = "3" if word == "cubic" else "2"
        else:
            divides = "/" if (match["join"] or "").strip() in ("/", "per") else ""
            exponent = match["power"] or power
            words.add(divides + UNITS.get(word, word.removesuffix("s")) + (f"^{exponent}" if exponent else ""))
            power = ""
        position = match.end()
        if position == len(stripped):
            return Unit(frozenset(words))
    return None


def _allowed(word: str, *, spaced: bool, in_formula: bool) -> bool:
    if word in NOT_UNITS:
        return False
    if word in UNITS or word == "sq":
        return spaced or not in_formula or len(word) > 1 or word in "€£¥₹¢$"
    return spaced and len(word) > (3 if in_formula else 2)
