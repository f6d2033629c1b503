"""One node's health as a page for people. Every string may come from a peer and is made harmless."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ftis_node.status.judgement import reach
from ftis_node.status.snapshot import NodeStatus, PeerStatus
from ftis_node.status.state import again, duration, learner_text, state_text, training_of
from ftis_node.status.swarm_view import NodeView
from ftis_node.status.texts import COLOURS, Grid, line, short, size
from ftis_node.store.reports import SequenceCounts

PEERS_SHOWN = 50
REJECTIONS_SHOWN = 10


def render_node(view: NodeView) -> Iterator[RenderableType]:
    yield heading(view.level, view.asked)
    for mark, texts in (("!", view.reasons), ("-", view.notes)):
        for text in texts:
            yield line(f"  {mark} {text}")
    if view.status is not None:
        yield from _status(view.status)


def heading(level: str, text: str) -> Text:
    return Text.assemble((level, f"bold {COLOURS[level]}"), "  ", line(text))


def _status(status: NodeStatus) -> Iterator[RenderableType]:
    facts = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(status):
        facts.add_row(name, line(value))
    yield facts
    if status.peers:
        yield _peer_table(status)
    for dial in status.dials:
        retry = "" if dial.retry_at_ms is None else f", again {again(dial.retry_at_ms - status.at_ms)}"
        yield line(f"  dialling {dial.address}: {dial.state}{retry}")
    for rejection in status.rejections[:REJECTIONS_SHOWN]:
        fate = "left out" if rejection.blame == "nobody" else "rejected"
        yield line(f"  {rejection.count} {fate} of {short(rejection.peer_id)}: {rejection.reason}: {rejection.detail}")


def _facts(status: NodeStatus) -> list[tuple[str, str]]:
    facts = [
        ("node", f"{short(status.peer_id)}, version {status.version}, listens on {status.listening or 'nothing'}"),
        ("run", "none yet" if status.run_id is None else f"{status.run_name} ({short(status.run_id)})"),
        *_model(status),
        ("round", f"{status.round}{_rate(status)}"),
        ("state", state_text(status)),
        ("learner", learner_text(status)),
        *([("memory", status.memory)] if status.memory else []),
        ("swarm", reach(status)),
        ("DHT", status.dht),
        *([("page", status.status_page)] if status.status_page else []),
    ]
    last = status.last_round
    if last is not None:
        totals, seconds = last.totals, last.seconds
        ago = "" if status.last_round_at_ms is None else f", {duration(status.at_ms - status.last_round_at_ms)} ago"
        facts += [
            (
                "last round",
                f"round {last.round}{ago}: {last.own_groups} own and {last.peer_groups} peers' groups,"
                f" {last.own_sampled} sampled; generating"
                f" {seconds.generating:.1f} s, scoring {seconds.scoring:.1f} s, training {seconds.training:.1f} s,"
                f" waiting {seconds.waiting:.1f} s",
            ),
            *([("time", f"last {status.pace.rounds} rounds: {shares}")] if (shares := status.pace.shares()) else []),
            *([("informative groups", groups)] if (groups := status.pace.groups()) else []),
            ("own", counts_text(totals.own, "generated")),
            ("peers'", counts_text(totals.peers, "accepted")),
        ]
        if last.own_reward is not None:
            facts.append(("reward", f"{last.own_reward:.3f} own" + _maybe(", {:.3f} peers'", last.peer_reward)))
        if last.own_logprob_mismatch is not None:
            facts.append(("mismatch", f"{last.own_logprob_mismatch:.1e} between engine and trainer on own samples"))
    if not status.learner.startswith("none"):
        facts.append(("swarm helps?", status.peers_agreement.in_words()))
        if status.own_agreement.measured:
            facts.append(("own samples", status.own_agreement.in_words()))
    traffic = [(peer.bytes_in, peer.bytes_out) for peer in status.peers]
    facts.append(("traffic", f"{size(sum(t[0] for t in traffic))} in, {size(sum(t[1] for t in traffic))} out"))
    facts.append(("inbox", ", ".join(f"{count} {state}" for state, count in sorted(status.inbox.items())) or "empty"))
    return facts


def _model(status: NodeStatus) -> list[tuple[str, str]]:
    if status.learner.startswith("none"):
        return []
    trained = f"{status.trainable_parameters:,} trained ({training_of(status) or 'not loaded yet'})"
    tokenizer = f", tokenizer {short(status.tokenizer_fingerprint)}" if status.tokenizer_fingerprint else ""
    return [("model", f"{status.model or '?'}, {status.parameters:,} parameters, {trained}{tokenizer}")]


def counts_text(counts: SequenceCounts, arrived: str) -> str:
    excluded = "".join(f", {count:,} {reason.replace('_', ' ')}" for reason, count in sorted(counts.excluded.items()))
    return (
        f"{counts.arrived:,} sequences {arrived}, {counts.trained:,} trained, {counts.filtered:,} filtered,"
        f" {counts.zero_advantage:,} without advantage{excluded}"
    )


def _peer_table(status: NodeStatus) -> Grid:
    return Grid(
        ("peer", "model", "contact", "round trip", "score", "groups accepted / rejected",
         "sequences trained / filtered", "does it help?", "in", "out"),
        [_peer_cells(status, peer) for peer in status.peers[:PEERS_SHOWN]],
        least=("in", "out", "groups accepted / rejected", "sequences trained / filtered", "round trip", "score"),
    )  # fmt: skip


def _peer_cells(status: NodeStatus, peer: PeerStatus) -> list[str]:
    if peer.banned_until_ms > status.at_ms:
        contact = f"banned: {peer.ban_reason}"
    elif peer.connected:
        contact = f"connected ({peer.direction})"
    elif peer.last_contact_ms == 0:
        contact = "through others"
    else:
        contact = f"{duration(status.at_ms - peer.last_contact_ms)} ago"
    groups = f"{peer.accepted_groups:,} / {peer.rejected_groups:,}"
    trip = "" if peer.round_trip_ms is None else f"{peer.round_trip_ms:.0f} ms"
    model = (peer.model or "relay") + _tokenizer_mark(status, peer)
    used = f"{peer.trained:,} / {peer.filtered:,}"
    helps = peer.agreement.in_words() if peer.sequences or peer.agreement.measured else ""
    helps += _maybe(", weighs {:.2f}", peer.weight)
    return [
        short(peer.peer_id), model, contact, trip, f"{peer.score:+.1f}", groups, used, helps, size(peer.bytes_in),
        size(peer.bytes_out),
    ]  # fmt: skip


def _tokenizer_mark(status: NodeStatus, peer: PeerStatus) -> str:
    """Whether a peer's tokens are this node's tokens, where both are known."""
    if not status.tokenizer_fingerprint or not peer.tokenizer_fingerprint:
        return ""
    return "" if peer.tokenizer_fingerprint == status.tokenizer_fingerprint else " (other tokenizer)"


def _rate(status: NodeStatus) -> str:
    return "" if status.seconds_per_round is None else f", one every {status.seconds_per_round:.1f} s"


def _maybe(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
