"""What peers say when asked: who they are, their run, their clock. One question, and pure judgements of the answers."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from ftis_node.config import NodeConfig
from ftis_node.doctor.findings import Verdict, failure, ok, warning
from ftis_node.errors import ConfigError, WireError
from ftis_node.manifest import Run
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import Introduction, fetch_introduction
from ftis_node.types import PeerId, short_id

DIAL_SECONDS = 12.0
DHT_SKEW_MS = 3_000
BACKWARDS_MS = 2_000
AGREES_SECONDS = 0.5
CLOCK_ADVICE = "set the clock by NTP (timedatectl set-ntp true), on this machine or the peer's"


@dataclass(frozen=True, slots=True)
class Acquaintance:
    """An address that was dialled, and who answered there or why nobody did. ``given``: named by the user."""

    address: Address
    given: bool
    met: Introduction | None
    reason: str


async def meet(address: Address, *, given: bool) -> Acquaintance:
    """Dial once."""
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            return Acquaintance(address, given, await fetch_introduction(address), "")
    except (TimeoutError, grpc.aio.AioRpcError):
        return Acquaintance(address, given, None, "does not answer")
    except (WireError, ConfigError) as error:
        return Acquaintance(address, given, None, str(error)[:300])


def judge_peers(dialled: Sequence[Acquaintance], *, own_id: PeerId | None, daemon_runs: bool) -> Verdict:
    """Who answers. That none of the peers given does keeps the node alone; its known ones it will keep trying."""
    twins = [a for a in dialled if a.met is not None and a.met.record.peer_id == own_id]
    if twins and not daemon_runs:
        return failure(
            f"{twins[0].address.target} answers with this home's own identity: another daemon runs with it",
            "stop it, or give one of the two another --home",
        )
    others = [a for a in dialled if a not in twins]
    if not others:
        known = "the only one known is this node itself" if twins else "none given, none known from before"
        return warning(known, "give --peers host:port of a node of the swarm; without it the node waits to be dialled")
    answering = [a for a in others if a.met is not None]
    away = "; ".join(f"{a.address.target}: {a.reason}" for a in others if a.met is None)
    who = ", ".join(f"{short_id(a.met.record.peer_id)} at {a.address.target}" for a in answering if a.met is not None)
    if not answering:
        level = failure if any(a.given for a in others) else warning
        return level(f"none answers: {away}", "is the address right, its port open, and this machine online?")
    if away:
        return warning(f"{len(answering)} of {len(others)} answer: {who}; {away}")
    return ok(f"{who} in {max(a.met.took_ms for a in answering if a.met is not None):,} ms")


def judge_run(run: Run | None, source: str, dialled: Sequence[Acquaintance]) -> Verdict:
    """Whether the peers are in the same run."""
    if run is None:
        return warning(
            "none known: the checks below use builtin:addition",
            "give --peers host:port to join a swarm, or --run (run.toml, builtin:addition) to start one",
        )
    found = f"{run.manifest.name} ({short_id(run.run_id)}), {source}"
    met = [a for a in dialled if a.met is not None]
    strangers = [a for a in met if a.met is not None and a.met.run.run_id != run.run_id]
    if strangers:
        first = strangers[0]
        assert first.met is not None
        level = failure if len(strangers) == len(met) else warning
        return level(
            f"{found}; but {first.address.target} is in run {first.met.run.manifest.name}"
            f" ({short_id(first.met.run.run_id)})",
            "use another --home for that run, or the peers of this one",
        )
    return ok(found)


def clock_offset_ms(met: Introduction) -> float:
    """How far a peer's clock is ahead of this one; true to half the time that the answer took."""
    return met.record.created_at_ms - (met.asked_at_ms + met.took_ms / 2)


def judge_clock(
    offsets_ms: Sequence[float], *, now_ms: int, newest_ms: int | None, allowed_ms: float, config: NodeConfig
) -> Verdict:
    """This machine's clock against peers' and against what the node itself wrote before. ``allowed_ms``: the run's."""
    if newest_ms is not None and newest_ms - now_ms > BACKWARDS_MS:
        return failure(
            f"shows a time {(newest_ms - now_ms) / 1000:,.0f} s before this node's own last entry in its store",
            "set the clock by NTP (timedatectl set-ntp true)",
        )
    if not offsets_ms:
        past = "" if newest_ms is None else "; it isn't before the store's last entry"
        return warning(f"can't be checked without a peer{past}", "compare it with NTP: timedatectl")
    offset = statistics.median(offsets_ms)
    seconds = abs(offset) / 1000
    count = "a peer's" if len(offsets_ms) == 1 else f"that of {len(offsets_ms)} peers (median)"
    found = f"{seconds:.1f} s {'behind' if offset > 0 else 'ahead of'} {count}"
    if seconds < AGREES_SECONDS:
        return ok(f"agrees with {count}")
    if abs(offset) > allowed_ms:
        return failure(f"{found}; the run allows {allowed_ms / 1000:.0f} s: batches would be refused", CLOCK_ADVICE)
    if abs(offset) > DHT_SKEW_MS and config.network.dht == "on":
        return warning(f"{found}; the DHT allows 3 s and refuses this node", CLOCK_ADVICE)
    return ok(found)
