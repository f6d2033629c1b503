"""What to think of a node's state, in words. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ftis_node.status.snapshot import NodeStatus, PeerStatus
from ftis_node.status.state import duration, learner_text

LATELY_MS = 120_000
FEWEST_SKIPPED = 3
NOT_REACHED, NOT_ANSWERED = "can't be reached", "does not answer"
"""How the states of dials begin that are for want of an answer, and no refusal."""
SILENCE_SLACK_MS = 4_000
"""Neighbours answer a ping every ``ping_seconds``, and when they were heard is written every 2 s."""


class Level(enum.IntEnum):
    """The value is the exit code of ``ftis-node health``."""

    HEALTHY = 0
    DEGRADED = 1
    UNREACHABLE = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """``reasons`` say why the node isn't better; ``notes`` tell of others, and cost it nothing."""

    level: Level
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(status: NodeStatus) -> Judgement:
    """How the node is, and every reason why it isn't better."""
    notes = tuple(_notes(status))
    if not status.daemon_running:
        return Judgement(Level.UNREACHABLE, ("no daemon runs on this home", *status.faults), notes)
    reasons = list(status.faults)
    if status.twin_at_ms is not None and status.at_ms - status.twin_at_ms < LATELY_MS:
        reasons.append("a second daemon runs with this node's identity: stop one of them, or give it another --home")
    if status.network:
        reasons.append(status.network)
    elif status.learner not in ("running", "finished") and not status.learner.startswith("none"):
        reasons.append(f"learner: {learner_text(status)}")
    if status.learner_died_at_ms is not None and status.learner == "running":
        ago = status.at_ms - status.learner_died_at_ms
        if ago < LATELY_MS:
            died = f"the learner died {duration(ago)} ago ({status.learner_died_of})"
            reasons.append(f"{died}; it goes on from its last checkpoint")
    reasons += _troubles_of_reach(status)
    reasons += _rounds_in_vain(status)
    if status.inbox.get("quarantined"):
        reasons.append(f"{status.inbox['quarantined']} groups are quarantined: the learner ended twice while at them")
    return Judgement(Level.DEGRADED if reasons else Level.HEALTHY, tuple(reasons), notes)


def _rounds_in_vain(status: NodeStatus) -> list[str]:
    """A round in which all rewards were equal happens; many of them, or numbers that are none, are a trouble."""
    last = status.last_round
    if last is None or last.skipped_reason is None:
        return []
    reason = f"round {last.round} took no step: {last.skipped_reason}"
    if status.skipped_lately >= FEWEST_SKIPPED and 2 * status.skipped_lately >= status.rounds_lately:
        return [f"{status.skipped_lately} of the last {status.rounds_lately} rounds took no step; {reason}"]
    return [reason] if "not finite" in last.skipped_reason else []


def _troubles_of_reach(status: NodeStatus) -> list[str]:
    reasons = []
    alone = not any(peer.connected for peer in status.peers)
    silent_ms = status.at_ms - max((peer.last_contact_ms for peer in status.peers if peer.connected), default=0)
    if not alone and silent_ms > status.ping_seconds * 1000 + SILENCE_SLACK_MS:
        reasons.append(
            f"nothing has come from any neighbour for {duration(silent_ms)}: is this machine's network down?"
        )
    for dial in status.dials:
        # With other neighbours a peer that is away is no trouble; one that refuses, or is somebody else, is.
        away = dial.state.startswith((NOT_REACHED, NOT_ANSWERED))
        if not dial.state.startswith("connected") and (alone or not away):
            reasons.append(f"peer {dial.address}: {dial.state}")
    if alone and (status.dials or status.peers):
        reasons.append(_why_alone(status))
    return reasons


def _why_alone(status: NodeStatus) -> str:
    away = [dial for dial in status.dials if dial.state.startswith((NOT_REACHED, NOT_ANSWERED))]
    known = sum(peer.last_contact_ms > 0 for peer in status.peers)
    if status.dials and len(away) == len(status.dials):
        cause = "the peer given does not answer"
        if len(away) > 1:
            cause = f"none of the {len(away)} peers given answers"
        if any(dial.state.startswith(NOT_REACHED) for dial in away):
            cause += "; is the address right, its port open, and this machine online?"
        else:
            cause += "; a firewall may drop what is sent there"
    elif status.dials:
        cause = "the peers given refuse this node or can't be used, see above"
    else:
        cause = f"none of {known} known peers answers; it keeps trying"
    return f"no peer is connected: {cause}"


def _notes(status: NodeStatus) -> list[str]:
    notes = []
    for peer in status.peers:
        if status.at_ms - peer.throttled_at_ms < LATELY_MS:
            held = peer.throttled_ms / 1000
            notes.append(f"{_name(peer)} sends more than a peer may and is held back ({held:,.0f} s in all)")
        if status.at_ms - peer.twin_at_ms < LATELY_MS:
            notes.append(f"two daemons run with the identity of {_name(peer)}")
    return notes


def _name(peer: PeerStatus) -> str:
    return f"peer {peer.peer_id[:12]}"


def reach(status: NodeStatus) -> str:
    """How the node is connected to the swarm, in one sentence."""
    connected = [peer for peer in status.peers if peer.connected]
    dialled_in = sum(peer.direction == "in" for peer in connected)
    if not status.daemon_running:
        return "not connected"
    if not connected:
        return "alone: others join by dialling this node" if not status.dials else "alone"
    parts = [f"{len(connected) - dialled_in} neighbours dialled", f"{dialled_in} dialled in"]
    trips = sorted(peer.round_trip_ms for peer in connected if peer.round_trip_ms is not None)
    if trips:
        parts.append(f"round trips {trips[0]:.0f} to {trips[-1]:.0f} ms")
    if not dialled_in:
        parts.append("nobody has dialled in: behind a NAT or firewall this is normal, and enough")
    return ", ".join(parts)
