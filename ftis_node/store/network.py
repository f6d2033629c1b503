"""The network half's side of the store: received batches, the signed outbox, peers and refusals."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.errors import StoreError
from ftis_node.store.peers import PeerTables
from ftis_node.store.process_states import ProcessState, encode_state
from ftis_node.store.schema import durable_transaction, open_database, transaction
from ftis_node.types import BatchName, LocalProfile, PeerId


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A payload that the learner wants published; ``id`` grows by one per entry."""

    id: int
    created_at_ms: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A verified batch on its way into the store; ``data`` is the encoded SignedBatch."""

    name: BatchName
    author: PeerId
    epoch: int
    sequence: int
    created_at_ms: int
    window: int
    slots: tuple[int, ...]
    sequences: int
    header: bytes
    signature: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the store knows when a batch arrives."""

    name_seen: bool
    other_header: bytes | None
    other_signature: bytes | None
    used_slots: dict[int, int]
    newest_epoch: int
    author_banned: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The learner's word on one received group; ``id`` is the cursor."""

    id: int
    name: BatchName
    author: PeerId
    outcome: str
    reason: str
    detail: str


class NetworkStore:
    """Owned by the network half. Not thread-safe: use it from one database thread."""

    def __init__(self, home: Path) -> None:
        self._db: sqlite3.Connection = open_database(home, durable=False)
        self.peers = PeerTables(self._db)
        self._held_bytes = self._sum_received()

    def close(self) -> None:
        self._db.close()

    # --- state of the run -------------------------------------------------------------------

    def get(self, key: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM network_state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        with durable_transaction(self._db):
            self._put(key, value)

    def put_state(self, key: str, text: str, seconds: float | None = None) -> None:
        """What this process does or waits for from now on, for ``seconds`` at most; see ``process_states``."""
        now = now_ms()
        until = None if seconds is None else now + int(seconds * 1000)
        self.put(key, encode_state(os.getpid(), ProcessState(text, now, until)))

    def _put(self, key: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO network_state VALUES (?, ?)", (key, value))

    def next_epoch(self) -> int:
        """max(now in ms, last epoch + 1), stored before anything of it is published.

        Neither a crash nor a home restored from a backup then signs two batches with one
        (epoch, sequence number).
        """
        with durable_transaction(self._db):
            last = int(self.get("epoch") or b"0")
            epoch = max(now_ms(), last + 1)
            self._put("epoch", b"%d" % epoch)
        return epoch

    def local_profile(self) -> LocalProfile | None:
        """The learner's tokenizer, once it has loaded its model."""
        row = self._db.execute("SELECT value FROM learner_state WHERE key = 'vocabulary_size'").fetchone()
        mark = self._db.execute("SELECT value FROM learner_state WHERE key = 'tokenizer_fingerprint'").fetchone()
        if row is None or mark is None:
            return None
        return LocalProfile(bytes(mark[0]), int(bytes(row[0])))

    def data_version(self) -> int:
        """Changes when the other side has committed something."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    # --- the signed outbox ------------------------------------------------------------------

    def unsigned(self, limit: int) -> list[OutboxEntry]:
        """The oldest outbox entries that are to be published and aren't yet."""
        rows = self._db.execute(
            "SELECT id, created_at_ms, payload FROM outbox WHERE id > ? AND kept = 0 ORDER BY id LIMIT ?",
            (int(self.get("outbox_cursor") or b"0"), limit),
        ).fetchall()
        return [OutboxEntry(int(row[0]), int(row[1]), bytes(row[2])) for row in rows]

    def publish(
        self, entry: OutboxEntry, epoch: int, seal: Callable[[int], tuple[BatchName, bytes]]
    ) -> tuple[BatchName, bytes]:
        """Take the next sequence number, seal the entry with it and commit both together.

        ``seal(sequence)`` signs and returns (name, encoded batch). Only after this returns may a
        peer hear of the batch.
        """
        with durable_transaction(self._db):
            sequence = int(self.get("sequence") or b"-1") + 1
            name, data = seal(sequence)
            self._db.execute(
                "INSERT INTO published VALUES (?, ?, ?, ?, ?, ?)",
                (name, entry.id, epoch, sequence, entry.created_at_ms, data),
            )
            self._put("sequence", b"%d" % sequence)
            self._put("outbox_cursor", b"%d" % entry.id)
        return name, data

    def skip_outbox(self, entry: OutboxEntry) -> None:
        """Pass over an entry that can't be published any more (too old)."""
        self.put("outbox_cursor", b"%d" % entry.id)

    # --- received batches -------------------------------------------------------------------

    def sighting(self, name: BatchName, author: PeerId, epoch: int, sequence: int, window: int) -> Sighting:
        seen = self._db.execute("SELECT 1 FROM seen WHERE name = ?", (name,)).fetchone() is not None
        other = self._db.execute(
            "SELECT header, signature FROM seen WHERE author = ? AND epoch = ? AND sequence = ? AND name != ?",
            (author, epoch, sequence, name),
        ).fetchone()
        slots = self._db.execute(
            "SELECT slot, epoch FROM received_slots WHERE author = ? AND window = ?", (author, window)
        ).fetchall()
        newest = self._db.execute("SELECT coalesce(max(epoch), 0) FROM seen WHERE author = ?", (author,)).fetchone()[0]
        return Sighting(
            name_seen=seen,
            newest_epoch=int(newest),
            author_banned=self.peers.banned(author) is not None,
            other_header=None if other is None else bytes(other[0]),
            other_signature=None if other is None else bytes(other[1]),
            used_slots={int(slot): int(filled_in) for slot, filled_in in slots},
        )

    def accept(
        self, batch: ReceivedBatch, *, delivered_by: PeerId, address_range: str, keep_until_ms: int, max_bytes: int
    ) -> None:
        """Keep a verified batch. Raises StoreError when the store is full of live batches."""
        with transaction(self._db):
            if self._held_bytes + len(batch.data) > max_bytes:
                raise StoreError(
                    f"the store holds {self._held_bytes} bytes of received batches, {max_bytes} are allowed"
                )
            self._remember(batch, keep_until_ms)
            self._db.execute(
                "INSERT INTO received VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    batch.name, batch.author, delivered_by, address_range, batch.created_at_ms, now_ms(),
                    batch.window, len(batch.slots), batch.sequences, batch.data,
                ),
            )  # fmt: skip
            self._db.executemany(
                "INSERT INTO received_slots (author, window, slot, epoch, keep_until_ms) VALUES (?, ?, ?, ?, ?)",
                [(batch.author, batch.window, slot, batch.epoch, keep_until_ms) for slot in batch.slots],
            )
        self._held_bytes += len(batch.data)

    def _sum_received(self) -> int:
        return int(self._db.execute("SELECT coalesce(sum(length(data)), 0) FROM received").fetchone()[0])

    def remember(self, batch: ReceivedBatch, keep_until_ms: int) -> None:
        """Remember a batch that was refused after its signature held, so that it is free next time."""
        with transaction(self._db):
            self._remember(batch, keep_until_ms)

    def _remember(self, batch: ReceivedBatch, keep_until_ms: int) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?, ?, ?)",
            (batch.name, batch.author, batch.epoch, batch.sequence, batch.header, batch.signature, keep_until_ms),
        )

    def unknown(self, names: Sequence[BatchName]) -> set[BatchName]:
        """Those of the names that were never seen and aren't our own."""
        known: set[bytes] = set()
        for start in range(0, len(names), 500):
            part = names[start : start + 500]
            marks = ",".join("?" * len(part))
            query = (
                f"SELECT name FROM seen WHERE name IN ({marks})"
                f" UNION SELECT name FROM published WHERE name IN ({marks})"
            )
            known.update(bytes(row[0]) for row in self._db.execute(query, (*part, *part)))
        return {name for name in names if name not in known}

    def live(self, since_ms: int, limit: int) -> list[tuple[BatchName, int]]:
        """Name and size of the batches created after ``since_ms``, newest first."""
        rows = self._db.execute(
            "SELECT name, length(data), created_at_ms FROM published WHERE created_at_ms >= ?1"
            " UNION ALL SELECT name, length(data), created_at_ms FROM received WHERE created_at_ms >= ?1"
            " ORDER BY created_at_ms DESC LIMIT ?2",
            (since_ms, limit),
        ).fetchall()
        return [(BatchName(bytes(row[0])), int(row[1])) for row in rows]

    def load(self, name: BatchName) -> bytes | None:
        """The encoded batch, own or received."""
        row = self._db.execute(
            "SELECT data FROM published WHERE name = ?1 UNION ALL SELECT data FROM received WHERE name = ?1", (name,)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def count_rejection(self, peer: PeerId, reason: str, blame: str, detail: str) -> None:
        with transaction(self._db):
            self._count_rejection(peer, reason, blame, detail)

    def _count_rejection(self, peer: PeerId, reason: str, blame: str, detail: str) -> None:
        self._db.execute(
            "INSERT INTO rejections VALUES (?, ?, ?, 1, ?, ?)"
            " ON CONFLICT (peer, reason, blame) DO UPDATE SET count = count + 1,"
            " last_ms = excluded.last_ms, detail = excluded.detail",
            (peer, reason, blame, now_ms(), detail[:300]),
        )

    # --- verdicts of the learner ------------------------------------------------------------

    def fold_verdicts(self, limit: int) -> list[Verdict]:
        """Fold the learner's new verdicts into the peers' counts, each exactly once."""
        with transaction(self._db):
            rows = self._db.execute(
                "SELECT id, name, author, outcome, reason, detail FROM verdicts WHERE id > ? ORDER BY id LIMIT ?",
                (int(self.get("verdict_cursor") or b"0"), limit),
            ).fetchall()
            verdicts = [
                Verdict(int(r[0]), BatchName(bytes(r[1])), PeerId(bytes(r[2])), str(r[3]), str(r[4]), str(r[5]))
                for r in rows
            ]
            for verdict in verdicts:
                self.peers.touch(verdict.author)
                self._db.execute(
                    "UPDATE peers SET accepted_groups = accepted_groups + ?, rejected_groups = rejected_groups + ?"
                    " WHERE peer = ?",
                    (verdict.outcome == "accepted", verdict.outcome == "rejected", verdict.author),
                )
                if verdict.outcome != "accepted":
                    blame = "author" if verdict.outcome == "rejected" else "nobody"
                    self._count_rejection(verdict.author, verdict.reason, blame, verdict.detail)
            if verdicts:
                self._put("verdict_cursor", b"%d" % verdicts[-1].id)
        return verdicts

    # --- bounds -----------------------------------------------------------------------------

    def prune(self, oldest_live_ms: int) -> None:
        """Drop what nobody may ask for any more: batches and memories past their time."""
        now = now_ms()
        with transaction(self._db):
            self._db.execute("DELETE FROM received WHERE created_at_ms < ?", (oldest_live_ms,))
            self._db.execute("DELETE FROM published WHERE created_at_ms < ?", (oldest_live_ms,))
            self._db.execute("DELETE FROM received_slots WHERE keep_until_ms < ?", (now,))
            self._db.execute("DELETE FROM seen WHERE keep_until_ms < ?", (now,))
            self._db.execute(
                "DELETE FROM rejections WHERE rowid NOT IN"
                " (SELECT rowid FROM rejections ORDER BY last_ms DESC LIMIT 5000)"
            )
            self.peers.prune(now)
        self._held_bytes = self._sum_received()
