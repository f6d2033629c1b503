"""Health on a terminal: once, or again and again in the same place."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments

from ftis_node.status.node_rendering import render_node
from ftis_node.status.swarm_rendering import render_swarm
from ftis_node.status.swarm_view import HealthDocument
from ftis_node.status.texts import line

WIDTH_OF_FILES = 200


def print_health(document: HealthDocument, console: Console | None = None) -> None:
    (console or _console()).print(_page(document))


def _console() -> Console:
    """What goes into a file or a mail is as wide as its tables need, unless COLUMNS says how wide it is to be."""
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if told else WIDTH_OF_FILES)


def _page(document: HealthDocument) -> Group:
    if document.swarm is not None:
        return Group(*render_swarm(document))
    return Group(*(part for node in document.nodes for part in render_node(node)))


def _cut(console: Console, page: Group) -> RenderableType:
    """What a screen has room for, and how much it hadn't: nobody can scroll there."""
    lines = console.render_lines(page, pad=False)
    if len(lines) <= console.height:
        return page
    shown = max(1, console.height - 2)
    text = [Segments([*part, Segment.line()]) for part in lines[:shown]]
    rest = line(f"  {len(lines) - shown} more lines: a taller terminal, or the command without --watch, shows them")
    return Group(*text, rest)


class Screen:
    """Shows one document after the other: in place on a terminal, else as blocks with the time above."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, document: HealthDocument) -> None:
        if self._live is not None:
            self._live.update(_cut(self._console, _page(document)), refresh=True)
        else:
            self._console.print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}")
            print_health(document, self._console)
