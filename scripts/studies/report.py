"""What a study says: Markdown with tables, and plots beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.studies.intervals import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from scripts.studies.runs import Runs


@dataclass(frozen=True)
class Curve:
    """A line in a plot. ``half``: of the 95 % interval around each y, where there are several seeds."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    half: Sequence[float] = ()


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False


@dataclass(frozen=True)
class Table:
    """``rows`` begin with what they are of."""

    caption: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.heading, tuple("---" if i == 0 else "---:" for i in range(len(self.heading))), *self.rows]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{self.caption}\n\n{body}"


@dataclass(frozen=True)
class Report:
    tables: tuple[Table, ...]
    panels: tuple[Panel, ...] = ()

    def markdown(self, picture: str | None) -> str:
        parts = [table.markdown() for table in self.tables]
        if picture is not None:
            parts.append(f"![{'; '.join(panel.title for panel in self.panels)}]({picture})")
        return "\n\n".join(parts) + "\n"


def learning_curves(title: str, party: str, runs: dict[str, Runs], distribution: str = "in") -> Panel:
    """Accuracy over rounds of one party, a line for each simulation."""
    where = "in distribution" if distribution == "in" else "out of distribution"
    curves = tuple(_curve(label, each, party, distribution) for label, each in runs.items() if party in each.parties)
    return Panel(f"{title}, {where}", "round", "accuracy", curves)


def _curve(label: str, runs: Runs, party: str, distribution: str) -> Curve:
    rounds = runs.evaluated()
    found = [interval(runs.at(n, party, runs.sets(distribution))) for n in rounds]
    half = [each.high - each.mean for each in found] if len(runs.results) > 1 else []
    return Curve(label, rounds, [each.mean for each in found], half)


def draw(panels: Sequence[Panel], path: Path) -> None:
    """All panels side by side, two in a row."""
    from matplotlib.figure import Figure

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.8 * rows), layout="constrained")
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in figure.axes[len(panels) :]:
        axes.remove()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _draw_panel(axes: Axes, panel: Panel) -> None:
    styles = ("-", "--", "-.", ":")
    for number, curve in enumerate(panel.curves):
        (line,) = axes.plot(
            curve.x, curve.y, styles[number // 10 % 4], label=curve.label, marker="." if len(curve.x) < 20 else ""
        )
        if curve.half:
            low = [y - half for y, half in zip(curve.y, curve.half, strict=True)]
            high = [y + half for y, half in zip(curve.y, curve.half, strict=True)]
            axes.fill_between(curve.x, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=2 if len(panel.curves) > 5 else 1)
