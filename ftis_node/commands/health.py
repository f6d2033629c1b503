"""``ftis-node health``: one node's state from its store, or a whole swarm's from the nodes themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.errors import ConfigError, StoreError
from ftis_node.status.home_faults import disk_faults
from ftis_node.status.judgement import Level
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.status.summary import Answer, health_document, level_of
from ftis_node.status.swarm_view import HealthDocument


@dataclass(frozen=True)
class HealthOptions:
    """``peers`` are asked, and from them on the swarm, unless ``only``; ``swarm`` begins with the home's own peers."""

    home: Path
    peers: tuple[str, ...] = ()
    swarm: bool = False
    only: bool = False
    as_json: bool = False
    watch_seconds: float | None = None
    timeout_seconds: float = 10.0
    max_nodes: int = 500


def run_health(options: HealthOptions) -> int:
    """Print the state; returns the level as exit code (0 healthy, 1 degraded, 2 unreachable). Raises ConfigError."""
    if options.only and (options.swarm or not options.peers):
        raise ConfigError("--only: asks the nodes that --peers names and no others: give --peers, and not --swarm")
    look = _looker(options)
    if options.watch_seconds is not None:
        return int(_watch(look, options.watch_seconds, as_json=options.as_json))
    document = look()
    if options.as_json:
        print(document.model_dump_json(indent=2, ensure_ascii=True))  # no string of a peer moves a cursor
    else:
        from ftis_node.status.rendering import print_health

        print_health(document)
    return int(level_of(document))


def _looker(options: HealthOptions) -> Callable[[], HealthDocument]:
    """What is asked each time. Mistakes in addresses are raised at once."""
    if not options.peers and not options.swarm:
        return lambda: health_document([_own_answer(options.home)], asked_at_ms=now_ms(), bounds=None)
    # gRPC is imported only when nodes are asked: reading the own store must be quick.
    import asyncio

    from ftis_node.swarm.addresses import parse_address
    from ftis_node.walk import Walk, WalkLimits

    named = [parse_address(peer, source="--peers") for peer in options.peers]
    limits = WalkLimits(options.max_nodes, options.timeout_seconds, follow=not options.only)

    def look() -> HealthDocument:
        began_ms = now_ms()
        own = _own_answer(options.home) if options.swarm else None
        walk = Walk(limits, own)
        bounds = asyncio.run(walk.run(named))
        return health_document(walk.answers, asked_at_ms=began_ms, bounds=None if options.only else bounds)

    return look


def _own_answer(home: Path) -> Answer:
    try:
        status: NodeStatus | None = read_status(home)
    except StoreError as error:
        faults = disk_faults(home) if home.exists() else ()
        return Answer(str(home), True, None, None, str(error), faults=faults)
    assert status is not None
    return Answer(str(home), True, status.peer_id or None, status)


def _watch(look: Callable[[], HealthDocument], seconds: float, *, as_json: bool) -> Level:
    """Until Ctrl-C: in place on a terminal, else one block (or one line of JSON) after the other."""
    from ftis_node.status.rendering import Screen

    document = None
    try:
        if as_json:
            while True:
                document = look()
                print(document.model_dump_json(ensure_ascii=True), flush=True)
                time.sleep(seconds)
        with Screen() as screen:
            while True:
                document = look()
                screen.show(document)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return Level.UNREACHABLE if document is None else level_of(document)
