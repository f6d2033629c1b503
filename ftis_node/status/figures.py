"""One look at a running node: its store, its processes, and what to think of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ftis_node.status.judgement import Level
from ftis_node.status.processes import ProcessFigures, process_figures
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.status.summary import Answer, health_document, level_of
from ftis_node.status.swarm_view import NodeView
from ftis_node.store.reader import NetworkSums, StoreReader
from ftis_node.store.schema import STORE_FILE

LearnerPid = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the page, ``/metrics`` and ``/healthz`` are made of. ``processes`` holds ``network`` and ``learner``."""

    health: NodeView
    level: Level
    status: NodeStatus
    sums: NetworkSums
    processes: Mapping[str, ProcessFigures]
    store_bytes: int | None


def look(home: Path, learner_pid: LearnerPid) -> Figures:
    """Read all of it, in some milliseconds; for a thread beside the event loop. Raises StoreError."""
    status = read_status(home)
    answer = Answer(status.status_page or "this node", True, status.peer_id or None, status)
    document = health_document([answer], asked_at_ms=status.at_ms, bounds=None)
    with StoreReader(home) as store:
        sums = store.network_sums(status.at_ms)
    learner = learner_pid()
    found = {
        "network": process_figures(os.getpid()),
        "learner": None if learner is None else process_figures(learner),
    }
    return Figures(
        health=document.nodes[0],
        level=level_of(document),
        status=status,
        sums=sums,
        processes={name: figures for name, figures in found.items() if figures is not None},
        store_bytes=_size_of_store(home),
    )


def _size_of_store(home: Path) -> int | None:
    """With what SQLite keeps beside the file while it is open."""
    try:
        return sum(path.stat().st_size for path in home.glob(STORE_FILE + "*"))
    except FileNotFoundError:  # the log beside it has just been folded in
        return None
