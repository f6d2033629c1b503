"""``ftis-node demo``: three daemons with three models train together, then each alone; ends with a report."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ftis_node.commands.demo_picture import write_picture
from ftis_node.commands.demo_report import DemoReport, measure, print_report
from ftis_node.commands.demo_swarm import (
    POLL_SECONDS,
    DemoError,
    DemoNode,
    DemoParty,
    start_nodes,
    stop_nodes,
)
from ftis_node.commands.init import run_toml
from ftis_node.errors import HomeError
from ftis_node.status.snapshot import NodeStatus
from ftis_node.status.state import state_text

ROUNDS = 60
OWN_GROUPS = 8
EVALUATION_ITEMS = 400
PHASE_SECONDS = 1800.0

PARTIES = (
    DemoParty("small", "builtin:small", learning_rate=3e-4),
    DemoParty("large", "builtin:large", learning_rate=1e-4),
    DemoParty("large-lora", "builtin:large-steps", learning_rate=5e-4, lora_rank=16),
)


def run_demo(output: Path, *, rounds: int | None, keep: bool) -> int:
    """Returns the exit code. Raises FtisError when the output can't be written or a node fails."""
    console = Console()
    rounds = rounds or ROUNDS
    started = time.monotonic()
    work = _prepare(output)
    failed = True
    try:
        console.print(f"Three nodes, each with a model of its own, train for {rounds} rounds: together, then alone.")
        run_file = work / "run.toml"
        run_file.write_text(run_toml("demo"))
        with _progress(console, 2 * rounds * len(PARTIES)) as (live, progress, task):
            _train(live, progress, task, work / "together", run_file, rounds, together=True)
            _train(live, progress, task, work / "alone", run_file, rounds, together=False)
        with console.status("Measuring greedy accuracy before and after ..."):
            nodes = tuple(
                measure(party, work / "together" / party.name, work / "alone" / party.name, items=EVALUATION_ITEMS)
                for party in PARTIES
            )
        report = DemoReport(
            rounds=rounds, evaluation_items=EVALUATION_ITEMS, seconds=time.monotonic() - started, nodes=nodes
        )
        (output / "report.json").write_text(report.model_dump_json(indent=2) + "\n")
        write_picture(report, output / "report.png")
        print_report(console, report)
        console.print(f"Written: {output / 'report.json'} and {output / 'report.png'}")
        failed = False
        return 0
    except KeyboardInterrupt:
        failed = False
        raise
    finally:
        # The logs of a failure stay: the error message names them.
        if not keep and not failed:
            shutil.rmtree(work)
        else:
            console.print(f"Homes and logs of the nodes: {work}")


def _prepare(output: Path) -> Path:
    try:
        output.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="nodes-", dir=output))
    except OSError as error:
        raise HomeError(f"--output {output}: can't be written: {error.strerror}") from error


class _progress:
    """A live table above a progress bar over all rounds of both phases."""

    def __init__(self, console: Console, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
            TimeElapsedColumn(), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("starting", total=total)
        self._live = Live(self._bar, console=console, refresh_per_second=5)

    def __enter__(self) -> tuple[Live, Progress, TaskID]:
        self._live.start()
        return self._live, self._bar, self._task

    def __exit__(self, *error: object) -> None:
        self._live.stop()


def _train(
    live: Live, progress: Progress, task: TaskID, folder: Path, run_file: Path, rounds: int, *, together: bool
) -> None:
    """Run one phase's three daemons until all rounds are done."""
    phase = "together" if together else "alone"
    done = progress.tasks[task].completed
    progress.update(task, description=f"{phase}: starting")
    nodes = start_nodes(PARTIES, folder, run_file=run_file, rounds=rounds, own_groups=OWN_GROUPS, together=together)
    deadline = time.monotonic() + PHASE_SECONDS
    try:
        while True:
            statuses = [node.status() for node in nodes]
            rounds_done = sum(status.last_round.round for status in statuses if status and status.last_round)
            progress.update(task, completed=done + rounds_done, description=phase)
            live.update(Group(_table(phase, nodes, statuses), progress))
            if all(status is not None and status.learner == "finished" for status in statuses):
                return
            if time.monotonic() > deadline:
                raise DemoError(f"the nodes have not finished {rounds} rounds in {PHASE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
    finally:
        stop_nodes(nodes)


def _table(phase: str, nodes: list[DemoNode], statuses: list[NodeStatus | None]) -> Table:
    table = Table(title=f"Training {phase}", box=None, header_style="bold", padding=(0, 2, 0, 0), title_justify="left")
    for name in ("node", "trained\nparameters", "round", "reward", "sequences\nown / peers'", "filtered", "now"):
        table.add_column(name, no_wrap=name != "now", overflow="fold")
    for node, status in zip(nodes, statuses, strict=True):
        table.add_row(*(escape(cell) for cell in _cells(node, status)))
    return table


def _cells(node: DemoNode, status: NodeStatus | None) -> list[str]:
    if status is None or status.last_round is None:
        return [node.party.name, "", "0", "", "", "", "starting" if status is None else state_text(status)]
    last, totals = status.last_round, status.last_round.totals
    return [
        node.party.name,
        f"{status.trainable_parameters:,}",
        str(last.round),
        "" if last.own_reward is None else f"{last.own_reward:.2f}",
        f"{totals.own.trained:,} / {totals.peers.trained:,}",
        f"{totals.own.filtered + totals.peers.filtered:,}",
        state_text(status),
    ]
