"""Text for a terminal: strings from peers can neither move the cursor, nor style the screen, nor fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

COLOURS = {"healthy": "green", "degraded": "yellow", "unreachable": "red"}
LONGEST_LINE = 400
LONGEST_CELL = 120
WIDEST_COLUMN = 26
"""What is longer goes on in the next line of its cell."""
GAP = 2


def line(text: str, longest: int = LONGEST_LINE) -> Text:
    """Without markup and control characters, and not longer than people read."""
    shown = text if len(text) <= longest else text[: longest - 1] + "…"
    return Text(printable(shown), overflow="fold")


def printable(text: str) -> str:
    """No control characters: a peer's string must not move the cursor of a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class Grid:
    """A table that can be read at any width: where it is narrow, columns are left out, and it says which.

    ``least`` are names of columns, those that go first to last; the others always stay.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out: list[str] = []
        waiting = iter(self.least)
        while self._needs(left_out) > options.max_width and (name := next(waiting, None)) is not None:
            left_out.append(name)
        shown = [index for index, name in enumerate(self.names) if name not in left_out]
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for index in shown:
            table.add_column(self.names[index], overflow="fold")
        for row in self.rows:
            table.add_row(*(line(row[index], LONGEST_CELL) for index in shown))
        yield table
        if left_out:
            names = ", ".join(name for name in self.names if name in left_out)
            yield line(f"  (not shown at this width: {names}; a wider terminal or --json shows them)")

    def _needs(self, left_out: Sequence[str]) -> int:
        """Cells of a terminal at which no column is squeezed so that people can't read it."""
        columns = [index for index, name in enumerate(self.names) if name not in left_out]
        widths = (max(cell_len(text[index][:WIDEST_COLUMN]) for text in (self.names, *self.rows)) for index in columns)
        return sum(min(width, WIDEST_COLUMN) for width in widths) + GAP * (len(columns) - 1)


def short(digest: str | None) -> str:
    """The first 12 hex digits of an id: what people see."""
    return "?" if not digest else digest[:12]


def size(count: int) -> str:
    return f"{count / 1024:,.0f} KiB" if count < 10 * 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MiB"
