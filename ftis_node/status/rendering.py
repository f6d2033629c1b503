"""Health as text for people and as JSON for programs. Strings from peers are escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ftis_node.status.document import NodeHealth
from ftis_node.status.judgement import Judgement, Level, reach
from ftis_node.status.snapshot import NodeStatus, PeerStatus
from ftis_node.store.reports import SequenceCounts


@dataclass(frozen=True, slots=True)
class HealthResult:
    """Where was asked, what came back, and what to think of it."""

    asked: str
    status: NodeStatus | None
    judgement: Judgement


_COLOURS = {Level.HEALTHY: "green", Level.DEGRADED: "yellow", Level.UNREACHABLE: "red"}


def print_json(results: Sequence[HealthResult]) -> None:
    """One object per node; the schema is documented in the README."""
    nodes = [NodeHealth.of(result.asked, result.status, result.judgement).model_dump(mode="json") for result in results]
    print(json.dumps({"nodes": nodes}, indent=2))


def print_health(results: Sequence[HealthResult]) -> None:
    console = Console(highlight=False)
    for result in results:
        level = result.judgement.level
        console.print(f"[bold {_COLOURS[level]}]{level.name.lower()}[/]  {escape(result.asked)}")
        for mark, lines in (("!", result.judgement.reasons), ("-", result.judgement.notes)):
            for line in lines:
                console.print(f"  {mark} {escape(_printable(line))}")
        if result.status is not None:
            _print_node(console, result.status)


def _print_node(console: Console, status: NodeStatus) -> None:
    facts = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(status):
        facts.add_row(name, escape(_printable(value)))
    console.print(facts)
    if status.peers:
        console.print(_peer_table(status))
    for dial in status.dials:
        again = "" if dial.retry_at_ms is None else f", again in {max(0, dial.retry_at_ms - status.at_ms) / 1000:.0f} s"
        console.print(f"  dialling {escape(_printable(dial.address))}: {escape(_printable(dial.state))}{again}")
    for rejection in status.rejections[:10]:
        line = f"{rejection.count} rejected of {rejection.peer_id[:12]}: {rejection.reason}: {rejection.detail}"
        console.print(f"  {escape(_printable(line))}")


def _facts(status: NodeStatus) -> list[tuple[str, str]]:
    facts = [
        ("node", f"{status.peer_id[:12]}, version {status.version}, listens on {status.listening or 'nothing'}"),
        ("run", "none yet" if status.run_id is None else f"{status.run_name} ({status.run_id[:12]})"),
        ("model", f"{status.model or '?'}, {status.parameters:,} parameters, {status.trainable_parameters:,} trained"),
        ("round", f"{status.round}, now {activity_text(status)}"),
        ("learner", status.learner),
        *([("memory", status.memory)] if status.memory else []),
        ("swarm", reach(status)),
        ("DHT", status.dht),
        *([("page", status.status_page)] if status.status_page else []),
    ]
    last = status.last_round
    if last is not None:
        totals, seconds = last.totals, last.seconds
        ago = (
            "" if status.last_round_at_ms is None else f", {(status.at_ms - status.last_round_at_ms) / 1000:.0f} s ago"
        )
        facts += [
            (
                "last round",
                f"round {last.round}{ago}: {last.own_groups} own and {last.peer_groups} peers' groups; generating"
                f" {seconds.generating:.1f} s, scoring {seconds.scoring:.1f} s, training {seconds.training:.1f} s,"
                f" waiting {seconds.waiting:.1f} s",
            ),
            ("own", counts_text(totals.own, "generated")),
            ("peers'", counts_text(totals.peers, "accepted")),
        ]
        if last.own_reward is not None:
            facts.append(("reward", f"{last.own_reward:.3f} own" + _maybe(", {:.3f} peers'", last.peer_reward)))
        if last.own_logprob_mismatch is not None:
            facts.append(("mismatch", f"{last.own_logprob_mismatch:.1e} between engine and trainer on own samples"))
    facts.append(("inbox", ", ".join(f"{count} {state}" for state, count in sorted(status.inbox.items())) or "empty"))
    return facts


def activity_text(status: NodeStatus) -> str:
    """What the node does or waits for, and since when."""
    if not status.daemon_running:
        return "stopped"
    if status.activity_since_ms is None:
        return status.activity
    text = f"{status.activity}, since {(status.at_ms - status.activity_since_ms) / 1000:.0f} s"
    if status.activity_until_ms is not None:
        text += f", at most {max(0, status.activity_until_ms - status.at_ms) / 1000:.0f} s more"
    return text


def counts_text(counts: SequenceCounts, arrived: str) -> str:
    excluded = "".join(f", {count:,} {reason.replace('_', ' ')}" for reason, count in sorted(counts.excluded.items()))
    return (
        f"{counts.arrived:,} sequences {arrived}, {counts.trained:,} trained, {counts.filtered:,} filtered,"
        f" {counts.zero_advantage:,} without advantage{excluded}"
    )


def _peer_table(status: NodeStatus) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="bold")
    for name in ("peer", "model", "contact", "round trip", "score", "groups accepted / rejected", "in", "out"):
        table.add_column(name, overflow="fold")
    for peer in status.peers[:50]:
        table.add_row(*(escape(_printable(cell)) for cell in _peer_cells(status, peer)))
    return table


def _peer_cells(status: NodeStatus, peer: PeerStatus) -> list[str]:
    if peer.banned_until_ms > status.at_ms:
        contact = f"banned: {peer.ban_reason}"
    elif peer.connected:
        contact = f"connected ({peer.direction})"
    elif peer.last_contact_ms == 0:
        contact = "through others"
    else:
        contact = f"{(status.at_ms - peer.last_contact_ms) / 1000:.0f} s ago"
    groups = f"{peer.accepted_groups:,} / {peer.rejected_groups:,}"
    trip = "" if peer.round_trip_ms is None else f"{peer.round_trip_ms:.0f} ms"
    model = (peer.model or "relay") + _tokenizer_mark(status, peer)
    score = f"{peer.score:+.1f}"
    return [peer.peer_id[:12], model, contact, trip, score, groups, _size(peer.bytes_in), _size(peer.bytes_out)]


def _tokenizer_mark(status: NodeStatus, peer: PeerStatus) -> str:
    """Whether a peer's tokens are this node's tokens, where both are known."""
    if not status.tokenizer_fingerprint or not peer.tokenizer_fingerprint:
        return ""
    return "" if peer.tokenizer_fingerprint == status.tokenizer_fingerprint else " (other tokenizer)"


def _size(count: int) -> str:
    return f"{count / 1024:,.0f} KiB" if count < 10 * 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MiB"


def _maybe(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _printable(text: str) -> str:
    """No control characters: a peer's string must not move the cursor of a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
