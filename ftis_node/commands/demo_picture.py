"""The demo's report as a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ftis_node.commands.demo_gain import SMOOTHING, smooth
from ftis_node.commands.demo_report import DemoReport, NodeResult

START, ALONE, TOGETHER = "#b8b8b8", "#e0913a", "#2a7ab9"


def write_picture(report: DemoReport, path: Path) -> None:
    """Rewards over time, accuracies, what became of the sequences and where the time went."""
    figure = Figure(figsize=(13, 8), layout="constrained")
    axes = figure.subplots(2, 3)
    _rewards(axes[0][0], report.nodes)
    _accuracy(axes[0][1], report.nodes, "in_distribution", "Greedy accuracy, sums to 19 (trained on)")
    _accuracy(axes[0][2], report.nodes, "out_of_distribution", "Greedy accuracy, sums to 29 (not trained on)")
    _stacked(
        axes[1][0], report.nodes, "Sequences while training together",
        {
            "own, trained": [node.own.trained for node in report.nodes],
            "peers', trained": [node.peers.trained for node in report.nodes],
            "filtered": [node.own.filtered + node.peers.filtered for node in report.nodes],
            "no advantage": [node.own.zero_advantage + node.peers.zero_advantage for node in report.nodes],
        },
    )  # fmt: skip
    _stacked(
        axes[1][1], report.nodes, "Seconds while training together",
        {
            phase: [getattr(node.seconds, phase) for node in report.nodes]
            for phase in ("generating", "scoring", "training", "measuring", "waiting")
        },
    )  # fmt: skip
    _wire(axes[1][2], report.nodes)
    figure.suptitle(f"ftis-node demo: three different models, {report.rounds} rounds")
    figure.savefig(path, dpi=110)


def _accuracy(axes: Axes, nodes: tuple[NodeResult, ...], field: str, title: str) -> None:
    width = 0.27
    for offset, (label, colour) in enumerate((("start", START), ("alone", ALONE), ("together", TOGETHER))):
        values = [getattr(getattr(node, label), field) for node in nodes]
        heights = [value.accuracy for value in values]
        errors = [[v.accuracy - v.low for v in values], [v.high - v.accuracy for v in values]]
        positions = [index + (offset - 1) * width for index in range(len(nodes))]
        bars = axes.bar(positions, heights, width, yerr=errors, capsize=3, color=colour, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes.set_xticks(range(len(nodes)), [node.name for node in nodes])
    axes.set_ylim(0, 1.12)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, loc="upper left", ncols=3)


def _rewards(axes: Axes, nodes: tuple[NodeResult, ...]) -> None:
    for index, node in enumerate(nodes):
        for label, style, found in (("together", "-", node.rewards_together), ("alone", ":", node.rewards_alone)):
            axes.plot(
                [at.seconds for at in found], smooth([at.reward for at in found]), style, color=f"C{index}",
                label=f"{node.name}, {label}",
            )  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_xlabel("the node's own seconds")
    axes.set_title(f"Mean reward of own samples (mean of {SMOOTHING} rounds)", fontsize=10)
    axes.legend(fontsize=7)


def _stacked(axes: Axes, nodes: tuple[NodeResult, ...], title: str, parts: dict[str, list[float]]) -> None:
    bottom = [0.0] * len(nodes)
    names = [node.name for node in nodes]
    for label, values in parts.items():
        axes.bar(names, values, bottom=bottom, label=label)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    axes.set_ylim(0, max(1.0, *bottom) * 1.3)
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8, ncols=3, loc="upper left")


def _wire(axes: Axes, nodes: tuple[NodeResult, ...]) -> None:
    bars = axes.bar([node.name for node in nodes], [node.bytes_per_token for node in nodes], color=TOGETHER)
    axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    axes.set_ylim(0, max(node.bytes_per_token for node in nodes) * 1.25)
    axes.set_title("Bytes per token on the wire, all included", fontsize=10)
