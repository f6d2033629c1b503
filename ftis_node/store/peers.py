"""Peers as the network half remembers them: contacts, addresses, scores and bans. Part of ``NetworkStore``."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.clock import now_ms
from ftis_node.store.schema import durable_transaction, transaction
from ftis_node.types import PeerId

KEPT_PEERS = 2_000
KEPT_PINS = 5_000
KEPT_ADDRESSES = 1_000
ADDRESSES_PER_PEER = 3
FORGOTTEN_AFTER_FAILURES = 12
REACHED_LATELY_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class KnownAddress:
    """Where a peer may be dialled; ``reached_ms`` is 0 until it answered there."""

    peer: PeerId
    target: str
    reached_ms: int
    failed_ms: int
    failures: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """With one neighbour, since the last time; ``throttled_seconds`` is how long it was left unread.

    ``silent_seconds``: how long ago it was last heard.
    """

    peer: PeerId
    bytes_in: int
    bytes_out: int
    throttled_seconds: float
    round_trip_ms: float | None
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class StoredScore:
    """A score and when it was that (ms)."""

    value: float
    at_ms: int


class PeerTables:
    """Uses the connection of the ``NetworkStore`` that owns it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def touch(self, peer: PeerId) -> None:
        """Make sure that there is a row; inside a transaction of the caller."""
        self._db.execute(
            "INSERT OR IGNORE INTO peers (peer, first_contact_ms, last_contact_ms) VALUES (?, ?, 0)", (peer, now_ms())
        )

    # --- contacts ---------------------------------------------------------------------------

    def connected(
        self, peer: PeerId, *, address: str, direction: str, model: str, version: str, tokenizer_fingerprint: bytes
    ) -> None:
        with transaction(self._db):
            self.touch(peer)
            self._db.execute(
                "UPDATE peers SET connected = 1, direction = ?, last_contact_ms = ?, model = ?, version = ?,"
                " tokenizer_fingerprint = ?, address = CASE WHEN ? != '' THEN ? ELSE address END WHERE peer = ?",
                (direction, now_ms(), model[:100], version[:40], tokenizer_fingerprint, address, address[:200], peer),
            )

    def disconnected(self, peer: PeerId) -> None:
        with transaction(self._db):
            self._db.execute("UPDATE peers SET connected = 0, round_trip_ms = NULL WHERE peer = ?", (peer,))

    def traffic(self, traffic: Sequence[Traffic]) -> None:
        """Add what has passed since the last call; the last contact is when a peer was heard."""
        now = now_ms()
        with transaction(self._db):
            self._db.executemany(
                "UPDATE peers SET bytes_in = bytes_in + ?1, bytes_out = bytes_out + ?2, round_trip_ms = ?5,"
                " last_contact_ms = ?3 - ?7,"
                " throttled_ms = throttled_ms + ?6,"
                " throttled_at_ms = CASE WHEN ?6 > 0 THEN ?3 ELSE throttled_at_ms END WHERE peer = ?4",
                [
                    (
                        t.bytes_in,
                        t.bytes_out,
                        now,
                        t.peer,
                        t.round_trip_ms,
                        int(t.throttled_seconds * 1000),
                        int(t.silent_seconds * 1000),
                    )
                    for t in traffic
                ],
            )
            self._add_to_total("bytes_in", sum(t.bytes_in for t in traffic))
            self._add_to_total("bytes_out", sum(t.bytes_out for t in traffic))

    def _add_to_total(self, key: str, count: int) -> None:
        """Sums that outlive the peers: one that is forgotten doesn't take its bytes back."""
        self._db.execute(
            "INSERT INTO network_state VALUES (?1, CAST(?2 AS BLOB)) ON CONFLICT (key) DO UPDATE"
            " SET value = CAST(CAST(CAST(value AS TEXT) AS INTEGER) + ?2 AS BLOB)",
            (key, count),
        )

    def twin(self, peer: PeerId) -> None:
        """There is proof that two daemons run with this peer's identity."""
        with durable_transaction(self._db):
            self.touch(peer)
            self._db.execute("UPDATE peers SET twin_at_ms = ? WHERE peer = ?", (now_ms(), peer))

    def all_disconnected(self) -> None:
        """At start and at the end nobody is connected, whatever a crash left behind."""
        with transaction(self._db):
            self._db.execute("UPDATE peers SET connected = 0, round_trip_ms = NULL")
            self._db.execute("DELETE FROM dials")

    def dial_state(self, address: str, state: str, retry_at_ms: int | None, peer: PeerId | None) -> None:
        with transaction(self._db):
            self._db.execute(
                "INSERT OR REPLACE INTO dials VALUES (?, ?, ?, ?, ?)",
                (address, state[:300], now_ms(), retry_at_ms, peer),
            )

    # --- addresses --------------------------------------------------------------------------

    def pinned(self, target: str) -> PeerId | None:
        """Who answered at an address when it was dialled for the first time."""
        row = self._db.execute("SELECT peer FROM pins WHERE address = ?", (target,)).fetchone()
        return None if row is None else PeerId(bytes(row[0]))

    def pin(self, target: str, peer: PeerId) -> None:
        """Remember who answers at an address; the newest word of the owner holds."""
        with durable_transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO pins VALUES (?, ?, ?)", (target, peer, now_ms()))

    def learn_addresses(self, addresses: list[tuple[PeerId, str]]) -> None:
        """Keep hints where peers may be dialled; nothing is known about them yet."""
        with transaction(self._db):
            for peer, target in addresses:
                held = self._db.execute("SELECT count(*) FROM addresses WHERE peer = ?", (peer,)).fetchone()[0]
                if held < ADDRESSES_PER_PEER:
                    self._db.execute(
                        "INSERT OR IGNORE INTO addresses VALUES (?, ?, ?, 0, 0, 0)", (peer, target, now_ms())
                    )

    def address_reached(self, peer: PeerId, target: str) -> None:
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO addresses VALUES (?1, ?2, ?3, ?3, 0, 0) ON CONFLICT (peer, target)"
                " DO UPDATE SET reached_ms = ?3, failed_ms = 0, failures = 0",
                (peer, target, now_ms()),
            )

    def address_failed(self, peer: PeerId, target: str) -> None:
        """Count a failed dial; an address that never worked again is forgotten."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE addresses SET failed_ms = ?, failures = failures + 1 WHERE peer = ? AND target = ?",
                (now_ms(), peer, target),
            )
            self._db.execute("DELETE FROM addresses WHERE failures >= ?", (FORGOTTEN_AFTER_FAILURES,))

    def known_addresses(self) -> list[KnownAddress]:
        """Of all peers that aren't connected or banned, most recently reached first."""
        rows = self._db.execute(
            "SELECT a.peer, a.target, a.reached_ms, a.failed_ms, a.failures FROM addresses a"
            " LEFT JOIN peers p ON p.peer = a.peer"
            " WHERE coalesce(p.connected, 0) = 0 AND coalesce(p.banned_until_ms, 0) < ?"
            " ORDER BY a.reached_ms DESC, a.learned_ms DESC LIMIT ?",
            (now_ms(), KEPT_ADDRESSES),
        ).fetchall()
        return [KnownAddress(PeerId(bytes(r[0])), str(r[1]), int(r[2]), int(r[3]), int(r[4])) for r in rows]

    def reachable_addresses(self, limit: int) -> list[tuple[PeerId, str]]:
        """What may be passed on: addresses at which this node found the peer itself, not long ago."""
        rows = self._db.execute(
            "SELECT peer, target FROM addresses WHERE reached_ms >= ? ORDER BY random() LIMIT ?",
            (now_ms() - REACHED_LATELY_MS, limit),
        ).fetchall()
        return [(PeerId(bytes(row[0])), str(row[1])) for row in rows]

    # --- scores and bans --------------------------------------------------------------------

    def score(self, peer: PeerId) -> StoredScore:
        row = self._db.execute("SELECT score, score_at_ms FROM peers WHERE peer = ?", (peer,)).fetchone()
        return StoredScore(0.0, 0) if row is None else StoredScore(float(row[0]), int(row[1]))

    def put_score(self, peer: PeerId, score: StoredScore) -> None:
        with transaction(self._db):
            self.touch(peer)
            self._db.execute(
                "UPDATE peers SET score = ?, score_at_ms = ? WHERE peer = ?", (score.value, score.at_ms, peer)
            )

    def ban(self, peer: PeerId, *, until_ms: int, reason: str, proof: bytes | None) -> None:
        with durable_transaction(self._db):
            self.touch(peer)
            self._db.execute(
                "UPDATE peers SET banned_until_ms = max(banned_until_ms, ?), ban_reason = ?,"
                " ban_proof = coalesce(?, ban_proof) WHERE peer = ?",
                (until_ms, reason[:100], proof, peer),
            )

    def banned(self, peer: PeerId) -> tuple[int, str] | None:
        """Until when (ms) and why a peer is banned now."""
        row = self._db.execute("SELECT banned_until_ms, ban_reason FROM peers WHERE peer = ?", (peer,)).fetchone()
        return (int(row[0]), str(row[1])) if row is not None and int(row[0]) > now_ms() else None

    # --- bounds -----------------------------------------------------------------------------

    def prune(self, now: int) -> None:
        """Inside a transaction of the caller."""
        self._db.execute(
            "DELETE FROM peers WHERE connected = 0 AND banned_until_ms < ? AND peer NOT IN"
            " (SELECT peer FROM peers ORDER BY last_contact_ms DESC LIMIT ?)",
            (now, KEPT_PEERS),
        )
        self._db.execute(
            "DELETE FROM pins WHERE address NOT IN (SELECT address FROM pins ORDER BY at_ms DESC LIMIT ?)", (KEPT_PINS,)
        )
        self._db.execute(
            "DELETE FROM addresses WHERE (peer, target) NOT IN"
            " (SELECT peer, target FROM addresses ORDER BY reached_ms DESC, failures, learned_ms DESC LIMIT ?)",
            (KEPT_ADDRESSES,),
        )
