"""The state of one node as its store tells it.

``NodeStatus`` is part of the documented JSON of ``ftis-node health --json`` (docs/health.md). It is also what a
peer answers, so it is parsed as hostile input: bounded, and unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ftis_node import __version__
from ftis_node.clock import now_ms
from ftis_node.identity import daemon_of
from ftis_node.status.agreement import Agreement, agreement_of
from ftis_node.status.home_faults import clock_faults, disk_faults, network_faults
from ftis_node.status.pace import Pace, pace_of
from ftis_node.store import authors
from ftis_node.store.authors import AuthorTotals
from ftis_node.store.process_states import ProcessState, decode_state
from ftis_node.store.reader import Activity, PeerRow, StoreReader
from ftis_node.store.reports import RoundReport, Whole

STATUS_SCHEMA = 1
LONGEST = 500
RATE_ROUNDS = 20
LATELY_MS = 300_000
"""``published_lately`` and ``batches_lately`` count what was made in this time before ``at_ms``."""

Number = Annotated[float, Field(ge=-1e15, le=1e15)]
"""Finite, and small enough to be shown."""


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
    last_contact_ms: Whole
    round_trip_ms: Number | None
    score: Number
    bytes_in: Whole
    bytes_out: Whole
    accepted_groups: Whole
    rejected_groups: Whole
    banned_until_ms: Whole
    ban_reason: str = Field(max_length=100)
    tokenizer_fingerprint: str = Field(default="", max_length=64)
    throttled_ms: Whole = 0
    throttled_at_ms: Whole = 0
    twin_at_ms: Whole = 0
    batches_lately: Whole = 0

    sequences: Whole = 0
    trained: Whole = 0
    filtered: Whole = 0
    zero_advantage: Whole = 0
    excluded: Whole = 0
    agreement: Agreement = Agreement(measured=0)
    weight: Annotated[float, Field(ge=0, le=1)] | None = None


class AddressStatus(_Part):
    """Where a peer may be dialled, by own contact, a neighbour's word or the DHT; ``reached_ms`` is 0 for never."""

    peer_id: str = Field(max_length=64)
    address: str = Field(max_length=300)
    reached_ms: Whole


class DialStatus(_Part):
    address: str = Field(max_length=300)
    state: str = Field(max_length=300)
    since_ms: Whole
    retry_at_ms: Whole | None


class RejectionStatus(_Part):
    peer_id: str = Field(max_length=64)
    reason: str = Field(max_length=100)
    blame: str = Field(max_length=20)
    count: Whole
    detail: str = Field(max_length=300)


class NodeStatus(_Part):
    """All times are ms since the Unix epoch by the node's clock; ``at_ms`` is when this was read.

    ``faults`` are those of the machine: disk, clock, network. ``network`` is what the network half waits for, if it
    does; ``since`` and ``until`` say since when a state holds and until when at most.
    """

    schema_version: int = STATUS_SCHEMA
    at_ms: Whole
    version: str = Field(max_length=40)
    peer_id: str = Field(max_length=64)
    listening: str | None = Field(max_length=300)
    status_page: str | None = Field(default=None, max_length=300)
    run_id: str | None = Field(max_length=64)
    run_name: str | None = Field(max_length=64)
    daemon_running: bool
    faults: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=20)] = ()
    network: str = Field(default="", max_length=300)
    network_since_ms: Whole | None = None
    network_until_ms: Whole | None = None
    learner: str = Field(max_length=300)
    learner_since_ms: Whole | None = None
    learner_until_ms: Whole | None = None
    learner_died_of: str = Field(default="", max_length=300)
    learner_died_at_ms: Whole | None = None
    ping_seconds: Annotated[float, Field(gt=0, le=3600)] = 4.0
    dht: str = Field(max_length=300)
    twin_at_ms: Whole | None = None
    tokenizer_fingerprint: str = Field(default="", max_length=64)
    memory: str = Field(default="", max_length=300)
    model: str = Field(max_length=300)
    parameters: Whole
    trainable_parameters: Whole
    round: Whole
    activity: str = Field(max_length=300)
    activity_since_ms: Whole | None
    activity_until_ms: Whole | None
    last_round_at_ms: Whole | None
    last_round: RoundReport | None
    seconds_per_round: Number | None = None
    pace: Pace = Pace()
    rounds_lately: Whole = 0
    skipped_lately: Whole = 0
    own_agreement: Agreement = Agreement(measured=0)
    peers_agreement: Agreement = Agreement(measured=0)
    inbox: Annotated[dict[Annotated[str, Field(max_length=40)], Whole], Field(max_length=40)]
    published_lately: Whole = 0
    published_batches: Whole
    published_bytes: Whole
    received_batches: Whole
    received_bytes: Whole
    peers: tuple[PeerStatus, ...] = Field(max_length=LONGEST)
    addresses: tuple[AddressStatus, ...] = Field(default=(), max_length=LONGEST)
    dials: tuple[DialStatus, ...] = Field(max_length=LONGEST)
    rejections: tuple[RejectionStatus, ...] = Field(max_length=LONGEST)


def read_status(home: Path) -> NodeStatus:
    """Read one home's store, whether or not its daemon runs. Raises StoreError when there is none."""
    with StoreReader(home) as store:
        at_ms = now_ms()
        run_id, run_name = _run_of(store.network_state("manifest"))
        last = store.last_round()
        published, received = store.published(), store.received()
        daemon = daemon_of(home)
        twin = decode_state(store.network_state("twin"), daemon)
        listening = decode_state(store.network_state("listening"), daemon)
        page = decode_state(store.network_state("status_page"), daemon)
        network = decode_state(store.network_state("network"), daemon) or ProcessState("")
        dht = decode_state(store.network_state("dht"), daemon) or ProcessState("off")
        learner = decode_state(store.network_state("learner"), daemon)
        died = decode_state(store.network_state("learner_died"), daemon) or ProcessState("")
        ping = decode_state(store.network_state("ping_seconds"), daemon) or ProcessState("4")
        activity = _activity(store.activity(), learner, at_ms)
        learner = learner or ProcessState("stopped" if daemon is None else "starting")
        by_author = {row.author: row for row in store.author_totals()}
        lately = store.received_since(at_ms - LATELY_MS)
        skipped_lately, rounds_lately = store.rounds_without_step(RATE_ROUNDS)
        peers, dials, addresses = store.peers(), store.dials(), store.addresses()
        written_ms = [
            int(store.network_state("epoch") or b"0"),
            activity.since_ms,
            0 if last is None else last[1],
            *(peer.last_contact_ms for peer in peers),
        ]
        return NodeStatus(
            at_ms=at_ms,
            version=__version__,
            peer_id=(store.network_state("peer_id") or b"").hex(),
            listening=None if listening is None else listening.text,
            status_page=None if page is None else page.text or None,
            run_id=run_id,
            run_name=run_name,
            daemon_running=daemon is not None,
            faults=(
                *disk_faults(home),
                *clock_faults(
                    at_ms,
                    written_ms,
                    decode_state(store.network_state("clock"), daemon),
                    steady_since_ms=None if listening is None else listening.since_ms,
                ),
                *network_faults([*(dial.address for dial in dials), *(a.target for a in addresses if a.reached_ms)]),
            ),
            network=network.text,
            network_since_ms=network.since_ms,
            network_until_ms=network.until_ms,
            learner=learner.text,
            learner_since_ms=learner.since_ms,
            learner_until_ms=learner.until_ms,
            learner_died_of=died.text,
            learner_died_at_ms=died.since_ms,
            ping_seconds=float(ping.text),
            dht=dht.text,
            twin_at_ms=None if twin is None else int(twin.text),
            tokenizer_fingerprint=(store.learner_state("tokenizer_fingerprint") or b"").hex(),
            memory=(store.learner_state("memory") or b"").decode(),
            model=(store.learner_state("model") or b"").decode(),
            parameters=int(store.learner_state("parameters") or b"0"),
            trainable_parameters=int(store.learner_state("trainable_parameters") or b"0"),
            round=activity.round,
            activity=activity.activity,
            activity_since_ms=activity.since_ms or None,
            activity_until_ms=activity.until_ms,
            last_round_at_ms=None if last is None else last[1],
            last_round=None if last is None else last[0],
            seconds_per_round=_seconds_per_round(store.round_times(RATE_ROUNDS)),
            pace=pace_of(store.recent_rounds(RATE_ROUNDS)),
            rounds_lately=rounds_lately,
            skipped_lately=skipped_lately,
            own_agreement=_agreement(by_author.get(authors.OWN)),
            peers_agreement=_agreement(by_author.get(authors.PEERS)),
            inbox=store.inbox_states(),
            published_lately=store.published_since(at_ms - LATELY_MS),
            published_batches=published[0],
            published_bytes=published[1],
            received_batches=received[0],
            received_bytes=received[1],
            peers=tuple(_peer(row, by_author.get(row.peer), lately.get(row.peer, 0)) for row in peers),
            addresses=tuple(
                AddressStatus(peer_id=a.peer.hex(), address=a.target, reached_ms=a.reached_ms) for a in addresses
            ),
            dials=tuple(
                DialStatus(address=d.address, state=d.state, since_ms=d.since_ms, retry_at_ms=d.retry_at_ms)
                for d in dials
            ),
            rejections=tuple(
                RejectionStatus(peer_id=r.peer.hex(), reason=r.reason, blame=r.blame, count=r.count, detail=r.detail)
                for r in store.rejections()
            ),
        )


def _run_of(manifest: bytes | None) -> tuple[str | None, str | None]:
    """Id and name of the run. The manifest was checked when it was stored, and checking it again takes long."""
    if manifest is None:
        return None, None
    return hashlib.sha256(manifest).hexdigest(), str(tomllib.loads(manifest.decode())["name"])


def _activity(stored: Activity | None, learner: ProcessState | None, at_ms: int) -> Activity:
    """What the learner does; what it did before it was started again doesn't count."""
    if stored is None:
        return Activity("starting", 0, 0 if learner is None else learner.since_ms or 0, None)
    restarted_ms = None if learner is None or learner.text != "running" else learner.since_ms
    if restarted_ms is not None and stored.since_ms < restarted_ms <= at_ms:
        return Activity("starting", stored.round, restarted_ms, None)
    return stored


def _peer(row: PeerRow, used: AuthorTotals | None, batches_lately: int) -> PeerStatus:
    known = dataclasses.asdict(row) | {"peer_id": row.peer.hex(), "batches_lately": batches_lately}
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
