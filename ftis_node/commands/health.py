"""``ftis-node health``: one node's state, from its store or from the node itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import ValidationError

from ftis_node.errors import StoreError, WireError
from ftis_node.status.judgement import Judgement, Level, judge
from ftis_node.status.rendering import HealthResult, print_health, print_json
from ftis_node.status.snapshot import NodeStatus, read_status


def run_health(home: Path, *, peers: tuple[str, ...], as_json: bool) -> int:
    """Print the state; returns the worst level as exit code (0 healthy, 1 degraded, 2 unreachable)."""
    results: list[HealthResult] = []
    if peers:
        results += [_ask(peer) for peer in peers]
    else:
        try:
            status = read_status(home)
            results.append(HealthResult(str(home), status, judge(status)))
        except StoreError as error:
            results.append(_unreachable(str(home), str(error)))
    (print_json if as_json else print_health)(results)
    return max(result.judgement.level for result in results)


def _unreachable(asked: str, reason: str) -> HealthResult:
    return HealthResult(asked, None, Judgement(Level.UNREACHABLE, (reason,)))


def _ask(peer: str) -> HealthResult:
    # gRPC is imported only when a peer is asked: reading the own store must be quick.
    import grpc

    from ftis_node.swarm.addresses import parse_address
    from ftis_node.swarm.dialing import fetch_status

    address = parse_address(peer, source="--peers")
    try:
        status = NodeStatus.model_validate_json(asyncio.run(fetch_status(address)))
    except WireError as error:
        return _unreachable(peer, str(error))
    except (TimeoutError, grpc.aio.AioRpcError):
        return _unreachable(peer, "does not answer")
    except ValidationError as error:
        return _unreachable(peer, f"answers with a status that can't be read ({error.error_count()} faults)")
    return HealthResult(peer, status, judge(status))
