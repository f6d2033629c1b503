"""``ftis-node demo``: three daemons with three models train together, then each alone; ends with a report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ftis_node.commands.demo_report import (
    DemoReport,
    NodeResult,
    print_report,
    read_traffic,
    rejections_by_reason,
    write_picture,
)
from ftis_node.commands.demo_swarm import POLL_SECONDS, DemoNode, DemoParty, start_nodes, stop_nodes
from ftis_node.commands.init import run_toml
from ftis_node.errors import HomeError
from ftis_node.status.rendering import activity_text
from ftis_node.store.reader import StoreReader

ROUNDS = 30
OWN_GROUPS = 8
EVALUATION_ITEMS = 400

PARTIES = (
    DemoParty("small", "builtin:small", learning_rate=3e-4),
    DemoParty("large", "builtin:large", learning_rate=3e-4),
    DemoParty("large-lora", "builtin:large-steps", learning_rate=2e-3, lora_rank=16),
)


@dataclass(frozen=True)
class Accuracies:
    """Greedy accuracy of one model, in and out of distribution."""

    in_distribution: float
    out_of_distribution: float


def run_demo(output: Path, *, rounds: int | None, keep: bool) -> int:
    """Returns the exit code. Raises FtisError when the output can't be written or a node fails."""
    console = Console()
    work = _prepare(output)
    started = time.monotonic()
    rounds = rounds or ROUNDS
    run_file = work / "run.toml"
    run_file.write_text(run_toml("demo"))
    try:
        console.print(f"Three nodes with three models, {rounds} rounds; logs and homes in {work}")
        together = _train(console, "together", work / "together", run_file, rounds)
        alone = _train(console, "alone", work / "alone", run_file, rounds)
        with console.status("measuring greedy accuracy ..."):
            results = tuple(
                _measure(party, with_others, by_itself)
                for party, with_others, by_itself in zip(PARTIES, together, alone, strict=True)
            )
        report = DemoReport(
            rounds=rounds, evaluation_items=EVALUATION_ITEMS, seconds=time.monotonic() - started, nodes=results
        )
        (output / "report.json").write_text(report.model_dump_json(indent=2))
        write_picture(report, output / "report.png")
        print_report(console, report)
        console.print(f"written: {output / 'report.json'}, {output / 'report.png'}")
        return 0
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
