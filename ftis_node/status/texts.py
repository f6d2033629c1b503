"""Text for a terminal: strings from peers can neither move the cursor, nor style the screen, nor fill it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

COLOURS = {"healthy": "green", "degraded": "yellow", "unreachable": "red"}
LONGEST_LINE = 400
LONGEST_CELL = 120


def line(text: str, longest: int = LONGEST_LINE) -> Text:
    """Without markup and control characters, and not longer than people read."""
    shown = text if len(text) <= longest else text[: longest - 1] + "…"
    return Text(printable(shown), overflow="fold")


def printable(text: str) -> str:
    """No control characters: a peer's string must not move the cursor of a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def grid(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(line(cell, LONGEST_CELL) for cell in row))
    return table


def short(digest: str | None) -> str:
    """The first 12 hex digits of an id: what people see."""
    return "?" if not digest else digest[:12]


def size(count: int) -> str:
    return f"{count / 1024:,.0f} KiB" if count < 10 * 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MiB"
