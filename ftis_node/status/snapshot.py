"""The state of one node as its store tells it.

``NodeStatus`` is the documented JSON of ``ftis-node health --json``. It is also what a peer answers,
so it is parsed as hostile input: bounded, and unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ftis_node import __version__
from ftis_node.clock import now_ms
from ftis_node.identity import daemon_of
from ftis_node.manifest import parse_run
from ftis_node.status.agreement import Agreement, agreement_of
from ftis_node.store import authors
from ftis_node.store.authors import AuthorTotals
from ftis_node.store.reader import PeerRow, StoreReader
from ftis_node.store.reports import RoundReport

STATUS_SCHEMA = 1
LONGEST = 500
RATE_ROUNDS = 20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PeerStatus(_Part):
    """A peer as this node knows it. The counts of sequences and the agreement are over the last 1,000 rounds."""

    peer_id: str = Field(max_length=64)
    address: str | None = Field(max_length=200)
    model: str = Field(max_length=100)
    version: str = Field(max_length=40)
    connected: bool
    direction: str = Field(max_length=10)
    last_contact_ms: int
    round_trip_ms: float | None
    score: float
    bytes_in: int
    bytes_out: int
    accepted_groups: int
    rejected_groups: int
    banned_until_ms: int
    ban_reason: str = Field(max_length=100)
    tokenizer_fingerprint: str = Field(default="", max_length=64)
    throttled_ms: int = 0
    throttled_at_ms: int = 0
    twin_at_ms: int = 0

    sequences: int = 0
    trained: int = 0
    filtered: int = 0
    zero_advantage: int = 0
    excluded: int = 0
    agreement: Agreement = Agreement(measured=0)


class DialStatus(_Part):
    address: str = Field(max_length=300)
    state: str = Field(max_length=300)
    since_ms: int
    retry_at_ms: int | None


class RejectionStatus(_Part):
    peer_id: str = Field(max_length=64)
    reason: str = Field(max_length=100)
    blame: str = Field(max_length=20)
    count: int
    detail: str = Field(max_length=300)


class NodeStatus(_Part):
    """All times are ms since the Unix epoch by the node's clock; ``at_ms`` is when this was read."""

    schema_version: int = STATUS_SCHEMA
    at_ms: int
    version: str = Field(max_length=40)
    peer_id: str = Field(max_length=64)
    listening: str | None = Field(max_length=300)
    status_page: str | None = Field(default=None, max_length=300)
    run_id: str | None = Field(max_length=64)
    run_name: str | None = Field(max_length=64)
    daemon_running: bool
    learner: str = Field(max_length=300)
    dht: str = Field(max_length=300)
    twin_at_ms: int | None = None
    tokenizer_fingerprint: str = Field(default="", max_length=64)
    memory: str = Field(default="", max_length=300)
    model: str = Field(max_length=300)
    parameters: int
    trainable_parameters: int
    round: int
    activity: str = Field(max_length=300)
    activity_since_ms: int | None
    activity_until_ms: int | None
    last_round_at_ms: int | None
    last_round: RoundReport | None
    seconds_per_round: float | None = None
    own_agreement: Agreement = Agreement(measured=0)
    peers_agreement: Agreement = Agreement(measured=0)
    inbox: dict[str, int]
    published_batches: int
    published_bytes: int
    received_batches: int
    received_bytes: int
    peers: tuple[PeerStatus, ...] = Field(max_length=LONGEST)
    dials: tuple[DialStatus, ...] = Field(max_length=LONGEST)
    rejections: tuple[RejectionStatus, ...] = Field(max_length=LONGEST)


def read_status(home: Path) -> NodeStatus:
    """Read one home's store, whether or not its daemon runs. Raises StoreError when there is none."""
    with StoreReader(home) as store:
        manifest = store.network_state("manifest")
        run = None if manifest is None else parse_run(manifest, source="stored run manifest")
        activity, last = store.activity(), store.last_round()
        published, received = store.published(), store.received()
        daemon = daemon_of(home)
        twin = _of_daemon(store.network_state("twin"), daemon)
        by_author = {row.author: row for row in store.author_totals()}
        return NodeStatus(
            at_ms=now_ms(),
            version=__version__,
            peer_id=(store.network_state("peer_id") or b"").hex(),
            listening=_of_daemon(store.network_state("listening"), daemon),
            status_page=_of_daemon(store.network_state("status_page"), daemon) or None,
            run_id=None if run is None else run.run_id.hex(),
            run_name=None if run is None else run.manifest.name,
            daemon_running=daemon is not None,
            learner=_of_daemon(store.network_state("learner"), daemon) or ("stopped" if daemon is None else "starting"),
            dht=_of_daemon(store.network_state("dht"), daemon) or "off",
            twin_at_ms=None if twin is None else int(twin),
            tokenizer_fingerprint=(store.learner_state("tokenizer_fingerprint") or b"").hex(),
            memory=(store.learner_state("memory") or b"").decode(),
            model=(store.learner_state("model") or b"").decode(),
            parameters=int(store.learner_state("parameters") or b"0"),
            trainable_parameters=int(store.learner_state("trainable_parameters") or b"0"),
            round=activity.round if activity is not None else 0,
            activity=activity.activity if activity is not None else "starting",
            activity_since_ms=activity.since_ms if activity is not None else None,
            activity_until_ms=activity.until_ms if activity is not None else None,
            last_round_at_ms=None if last is None else last[1],
            last_round=None if last is None else last[0],
            seconds_per_round=_seconds_per_round(store.round_times(RATE_ROUNDS)),
            own_agreement=_agreement(by_author.get(authors.OWN)),
            peers_agreement=_agreement(by_author.get(authors.PEERS)),
            inbox=store.inbox_states(),
            published_batches=published[0],
            published_bytes=published[1],
            received_batches=received[0],
            received_bytes=received[1],
            peers=tuple(_peer(row, by_author.get(row.peer)) for row in store.peers()),
            dials=tuple(
                DialStatus(address=d.address, state=d.state, since_ms=d.since_ms, retry_at_ms=d.retry_at_ms)
                for d in store.dials()
            ),
            rejections=tuple(
                RejectionStatus(peer_id=r.peer.hex(), reason=r.reason, blame=r.blame, count=r.count, detail=r.detail)
                for r in store.rejections()
            ),
        )


def _peer(row: PeerRow, used: AuthorTotals | None) -> PeerStatus:
    known = dataclasses.asdict(row) | {"peer_id": row.peer.hex()}
    if used is not None:
        known |= dataclasses.asdict(used) | {"agreement": _agreement(used)}
    return PeerStatus.model_validate(known)


def _agreement(used: AuthorTotals | None) -> Agreement:
    if used is None:
        return Agreement(measured=0)
    return agreement_of(used.measured, used.agreement_sum, used.agreement_squares)


def _seconds_per_round(times: list[tuple[int, int]]) -> float | None:
    """The mean over the newest rounds, from (round, ms) of each."""
    if len(times) < 2:
        return None
    (first, begin_ms), (last, end_ms) = times[0], times[-1]
    return (end_ms - begin_ms) / 1000 / (last - first)


def _of_daemon(value: bytes | None, daemon: int | None) -> str | None:
    """A state that the running daemon wrote, and not one before it."""
    process, _, state = (value or b"").decode().partition(" ")
    return state if daemon is not None and process == str(daemon) else None
