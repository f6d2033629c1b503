"""Looking into a store without a side in it: health, the demo, tests. Works beside a running daemon."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ftis_node.errors import StoreError
from ftis_node.store import authors
from ftis_node.store.authors import AuthorTotals
from ftis_node.store.reports import RoundReport
from ftis_node.store.schema import open_read_only


@dataclass(frozen=True, slots=True)
class Activity:
    """What the learner does or waits for, and since when (ms since the Unix epoch)."""

    activity: str
    round: int
    since_ms: int
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class PeerRow:
    peer: bytes
    address: str | None
    model: str
    version: str
    connected: bool
    direction: str
    last_contact_ms: int
    round_trip_ms: float | None
    score: float
    bytes_in: int
    bytes_out: int
    accepted_groups: int
    rejected_groups: int
    banned_until_ms: int
    ban_reason: str
    tokenizer_fingerprint: str
    throttled_ms: int
    throttled_at_ms: int
    twin_at_ms: int


@dataclass(frozen=True, slots=True)
class AddressRow:
    """Where a peer may be dialled; ``reached_ms`` is 0 until it answered there."""

    peer: bytes
    target: str
    reached_ms: int


@dataclass(frozen=True, slots=True)
class DialRow:
    address: str
    state: str
    since_ms: int
    retry_at_ms: int | None


@dataclass(frozen=True, slots=True)
class RejectionRow:
    peer: bytes
    reason: str
    blame: str
    count: int
    detail: str


@dataclass(frozen=True, slots=True)
class NetworkSums:
    """Over all peers that the store knows, also beyond those that ``peers`` lists.

    Bytes are ``None`` until some have passed.
    """

    connected: int
    known: int
    banned: int
    bytes_in: int | None
    bytes_out: int | None
    rejected: dict[str, int]


class StoreReader:
    """Read-only view of one home's store, to be used as a context manager.

    Raises StoreError when there is none, and at the end of the block when it turned out to be damaged.
    """

    def __init__(self, home: Path) -> None:
        self._db: sqlite3.Connection = open_read_only(home)

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise StoreError(f"the store can't be read: {error}") from error
        if isinstance(error, ValueError | KeyError | TypeError):  # what stands in its rows is read as JSON, TOML, ids
            raise StoreError(f"the store is damaged: it holds what no node writes ({type(error).__name__})") from error

    def network_state(self, key: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM network_state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def learner_state(self, key: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM learner_state WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def activity(self) -> Activity | None:
        value = self.learner_state("activity")
        if value is None:
            return None
        read = json.loads(value)
        return Activity(read["activity"], read["round"], read["since_ms"], read["until_ms"])

    def last_round(self) -> tuple[RoundReport, int] | None:
        """The newest report and when it was written."""
        row = self._db.execute("SELECT report, at_ms FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return None if row is None else (RoundReport.model_validate_json(row[0]), int(row[1]))

    def rounds(self, after: int = 0) -> list[RoundReport]:
        rows = self._db.execute("SELECT report FROM rounds WHERE round > ? ORDER BY round", (after,)).fetchall()
        return [RoundReport.model_validate_json(row[0]) for row in rows]

    def recent_rounds(self, count: int) -> list[tuple[RoundReport, int]]:
        """The newest reports with the time (ms) of each, oldest first."""
        rows = self._db.execute("SELECT report, at_ms FROM rounds ORDER BY round DESC LIMIT ?", (count,)).fetchall()
        return [(RoundReport.model_validate_json(row[0]), int(row[1])) for row in reversed(rows)]

    def rounds_after(self, after: int, limit: int) -> list[tuple[RoundReport, int]]:
        """The oldest reports after a round with the time (ms) of each, oldest first."""
        rows = self._db.execute(
            "SELECT report, at_ms FROM rounds WHERE round > ? ORDER BY round LIMIT ?", (after, limit)
        ).fetchall()
        return [(RoundReport.model_validate_json(row[0]), int(row[1])) for row in rows]

    def round_times(self, count: int) -> list[tuple[int, int]]:
        """Number and time (ms) of the newest rounds, oldest first."""
        rows = self._db.execute("SELECT round, at_ms FROM rounds ORDER BY round DESC LIMIT ?", (count,)).fetchall()
        return [(int(row[0]), int(row[1])) for row in reversed(rows)]

    def rounds_without_step(self, count: int) -> tuple[int, int]:
        """How many of the newest ``count`` rounds took no step, and how many rounds that are."""
        row = self._db.execute(
            "SELECT coalesce(sum(NOT json_extract(report, '$.stepped')), 0), count(*) FROM"
            " (SELECT report FROM rounds ORDER BY round DESC LIMIT ?)",
            (count,),
        ).fetchone()
        return int(row[0]), int(row[1])

    def author_totals(self) -> list[AuthorTotals]:
        """What became of each author's sequences in the last rounds."""
        return authors.totals(self._db)

    def newest_ms(self) -> int | None:
        """The latest time by this machine's own clock that stands in the store; None in an empty one."""
        row = self._db.execute(
            "SELECT max(at) FROM (SELECT max(at_ms) AS at FROM rounds"
            " UNION ALL SELECT max(received_at_ms) FROM received UNION ALL SELECT max(created_at_ms) FROM published"
            " UNION ALL SELECT max(since_ms) FROM dials UNION ALL SELECT max(last_contact_ms) FROM peers)"
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def reached_addresses(self, limit: int) -> list[tuple[bytes, str]]:
        """Peer and ``host:port`` where this node has found others, the latest first."""
        rows = self._db.execute(
            "SELECT peer, target FROM addresses WHERE reached_ms > 0 ORDER BY reached_ms DESC LIMIT ?", (limit,)
        ).fetchall()
        return [(bytes(row[0]), str(row[1])) for row in rows]

    def pinned(self, target: str) -> bytes | None:
        """Who answered at an address when it was dialled for the first time."""
        row = self._db.execute("SELECT peer FROM pins WHERE address = ?", (target,)).fetchone()
        return None if row is None else bytes(row[0])

    def peers(self) -> list[PeerRow]:
        rows = self._db.execute(
            "SELECT peer, address, model, version, connected, direction, last_contact_ms, round_trip_ms, score,"
            " bytes_in, bytes_out, accepted_groups, rejected_groups, banned_until_ms, ban_reason,"
            " lower(hex(tokenizer_fingerprint)), throttled_ms, throttled_at_ms, twin_at_ms FROM peers"
            " ORDER BY connected DESC, last_contact_ms DESC LIMIT 500"
        ).fetchall()
        return [PeerRow(bytes(r[0]), r[1], r[2], r[3], bool(r[4]), *r[5:]) for r in rows]

    def addresses(self) -> list[AddressRow]:
        """From own dials, neighbours' hints and the DHT; those that worked last come first."""
        rows = self._db.execute(
            "SELECT peer, target, reached_ms FROM addresses"
            " ORDER BY reached_ms DESC, failures, learned_ms DESC LIMIT 500"
        ).fetchall()
        return [AddressRow(bytes(r[0]), str(r[1]), int(r[2])) for r in rows]

    def received_since(self, since_ms: int) -> dict[bytes, int]:
        """Batches made since then, by author."""
        query = "SELECT author, count(*) FROM received WHERE created_at_ms >= ? GROUP BY author LIMIT 2000"
        return {bytes(author): int(count) for author, count in self._db.execute(query, (since_ms,))}

    def published_since(self, since_ms: int) -> int:
        row = self._db.execute("SELECT count(*) FROM published WHERE created_at_ms >= ?", (since_ms,)).fetchone()
        return int(row[0])

    def dials(self) -> list[DialRow]:
        rows = self._db.execute("SELECT address, state, since_ms, retry_at_ms FROM dials ORDER BY address").fetchall()
        return [DialRow(*row) for row in rows]

    def rejections(self) -> list[RejectionRow]:
        rows = self._db.execute(
            "SELECT peer, reason, blame, count, detail FROM rejections ORDER BY count DESC LIMIT 500"
        ).fetchall()
        return [RejectionRow(bytes(r[0]), *r[1:]) for r in rows]

    def network_sums(self, at_ms: int) -> NetworkSums:
        """Peers by state at that time, bytes and rejections since this home began to count them."""
        connected, known, banned = self._db.execute(
            "SELECT coalesce(sum(connected), 0), count(*), coalesce(sum(banned_until_ms > ?), 0) FROM peers", (at_ms,)
        ).fetchone()
        bytes_in, bytes_out = (self.network_state(key) for key in ("bytes_in", "bytes_out"))
        return NetworkSums(
            connected=int(connected),
            known=int(known),
            banned=int(banned),
            bytes_in=None if bytes_in is None else int(bytes_in),
            bytes_out=None if bytes_out is None else int(bytes_out),
            rejected={
                str(row[0]): int(row[1])
                for row in self._db.execute("SELECT reason, sum(count) FROM rejections GROUP BY reason LIMIT 200")
            },
        )

    def inbox_states(self) -> dict[str, int]:
        """Groups of peers by state: ready, used, rejected, expired, quarantined."""
        return {
            str(r[0]): int(r[1]) for r in self._db.execute("SELECT state, count(*) FROM inbox_groups GROUP BY state")
        }

    def published(self) -> tuple[int, int]:
        """How many batches this node holds of its own, and their bytes on the wire."""
        row = self._db.execute("SELECT count(*), coalesce(sum(length(data)), 0) FROM published").fetchone()
        return int(row[0]), int(row[1])

    def received(self) -> tuple[int, int]:
        row = self._db.execute("SELECT count(*), coalesce(sum(length(data)), 0) FROM received").fetchone()
        return int(row[0]), int(row[1])

    def published_batches(self) -> list[bytes]:
        """The encoded own batches, oldest first."""
        return [bytes(r[0]) for r in self._db.execute("SELECT data FROM published ORDER BY epoch, sequence")]
