"""One spelling for what can be written in several: signs, spaces, markdown, wrappers around an answer."""

from __future__ import annotations

import re

_INVISIBLE = dict.fromkeys(
    [0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFE0E, 0xFE0F, 0xFEFF]
)
_SPACES = dict.fromkeys([0x00A0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SIGNS = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": r"\div ", "±": r"\pm ", "≥": r"\geq ", "≤": r"\leq ", "⩾": r"\geq ", "⩽": r"\leq ", "≠": r"\neq ",
    "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "°": r"^\circ ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∅": r"\emptyset ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "θ": r"\theta ", "λ": r"\lambda ",
    "φ": r"\phi ", "⁄": "/", "∕": "/", "′": "'", "’": "'",
}  # fmt: skip
_VULGAR = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5),
    "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8),
}  # fmt: skip
_CHARACTERS = (
    _INVISIBLE
    | _SPACES
    | _FULL_WIDTH
    | str.maketrans(_SIGNS)
    | str.maketrans({sign: rf"\frac{{{above}}}{{{below}}}" for sign, (above, below) in _VULGAR.items()})
)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "₀₁₂₃₄₅₆₇₈₉₊₋"
_ORDINARY = "0123456789+-"

_REWRITES = [
    (re.compile(f"[{_RAISED}]+"), lambda match: "^{" + match[0].translate(str.maketrans(_RAISED, _ORDINARY)) + "}"),
    (re.compile(f"[{_LOWERED}]+"), lambda match: "_{" + match[0].translate(str.maketrans(_LOWERED, _ORDINARY)) + "}"),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle)(?![A-Za-z])"), lambda _: ""),
    (re.compile(r"\{,\}"), lambda _: ","),
    (re.compile(r"(?<!\\)\\!"), lambda _: ""),
    (re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~"), lambda _: " "),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), lambda _: r"\frac"),
    (re.compile(r"(?<!\\)\\([%$&#])"), lambda match: match[1]),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)(?![A-Za-z])\s*\}?|\\degree(?![A-Za-z])"), lambda _: r"^\circ "),
    (re.compile(r"\\(ge|le|ne)(?![A-Za-z])"), lambda match: rf"\{match[1]}q"),
    (re.compile(r"\s+"), lambda _: " "),
]
_ANNOUNCED = re.compile(
    r"[*_]*(?:(?:so|thus|hence|therefore),? )?(?:(?:the|my|our) )?(?:final |correct )?answer[*_]*"
    r"(?: is)?[*_]* ?[:=]?[*_]* (?=\S)",
    re.IGNORECASE,
)
_AROUND = [("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"), ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")]
_BOX = re.compile(r"\\f?box(?:ed)? ?\{")


def tidied(text: str) -> str:
    """An answer without what is only around it: ``**The answer is $18$.**`` is ``18``."""
    text = text.translate(_CHARACTERS)
    for pattern, written in _REWRITES:
        text = pattern.sub(written, text)
    before = None
    while text != before:
        before = text
        text = _unwrapped(text.strip())
    return text


def _unwrapped(text: str) -> str:
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1]
    for opening, closing in _AROUND:
        inner = text[len(opening) : -len(closing)]
        if text == opening + inner + closing and inner and opening not in inner and closing not in inner:
            return inner
    announced = _ANNOUNCED.match(text)
    if announced:
        return text[announced.end() :]
    box = _BOX.search(text)
    end = closing_brace(text, box.end()) if box else -1
    return text[: box.start()] + text[box.end() : end] + text[end + 1 :] if box and end >= 0 else text


def closing_brace(text: str, start: int, pair: str = "{}") -> int:
    """Where the bracket that was opened before ``start`` closes, or -1. A brace behind a backslash is a character."""
    depth = 1
    position = start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif character in pair:
            depth += 1 if character == pair[0] else -1
            if depth == 0:
                return position
        position += 1
    return -1
