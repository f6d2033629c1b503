"""Peers' groups as the learner sees them: claims, verdicts, and what may still be trained on."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.clock import now_ms
from ftis_node.store.schema import transaction
from ftis_node.types import BatchName, PeerId

MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class ReceivedRow:
    """A received batch that the learner hasn't looked into yet."""

    name: BatchName
    author: PeerId
    data: bytes


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """What the content check found: ``outcome`` is ``accepted`` or ``rejected``."""

    group_index: int
    sequences: int
    outcome: str
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A checked group that may be trained on; ``suspect`` if an earlier attempt at it crashed."""

    name: BatchName
    group_index: int
    author: PeerId
    delivered_by: PeerId
    address_range: str
    received_at_ms: int
    arrived_round: int
    author_groups: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class SourceRow:
    """An author that was heard from, how its last batch came, and how many of its groups were accepted."""

    author: PeerId
    delivered_by: PeerId
    address_range: str
    author_groups: int


class InboxStore:
    """The learner's tables about received batches, and its view of the network half's."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    # --- peers' groups: claims and verdicts -------------------------------------------------

    def unchecked(self, limit: int) -> list[ReceivedRow]:
        """Received batches without verdicts, newest first."""
        rows = self._db.execute(
            "SELECT name, author, data FROM received r WHERE NOT EXISTS"
            " (SELECT 1 FROM inbox_groups g WHERE g.name = r.name) ORDER BY created_at_ms DESC LIMIT ?",
            (limit,),
        ).fetchall()
        return [ReceivedRow(BatchName(bytes(r[0])), PeerId(bytes(r[1])), bytes(r[2])) for r in rows]

    def claim(self, names: Sequence[BatchName]) -> None:
        """Note, durably, that work on these batches begins."""
        with transaction(self._db):
            self._db.executemany(
                "INSERT INTO claims VALUES (?, 1, 1)"
                " ON CONFLICT (name) DO UPDATE SET attempts = attempts + 1, open = 1",
                [(name,) for name in set(names)],
            )

    def release_unfinished(self) -> None:
        """A clean stop in the middle of work is nobody's fault."""
        with transaction(self._db):
            self._db.execute("DELETE FROM claims WHERE open = 1 AND attempts <= 1")
            self._db.execute("UPDATE claims SET open = 0, attempts = attempts - 1 WHERE open = 1")

    def quarantine_repeated(self) -> list[BatchName]:
        """At start: set aside batches at which the learner has crashed ``MAX_ATTEMPTS`` times."""
        with transaction(self._db):
            rows = self._db.execute("SELECT name FROM claims WHERE attempts >= ?", (MAX_ATTEMPTS,)).fetchall()
            names = [BatchName(bytes(row[0])) for row in rows]
            for name in names:
                self._quarantine(name)
            self._db.execute("UPDATE claims SET open = 0")
        return names

    def _quarantine(self, name: BatchName) -> None:
        received = self._db.execute(
            "SELECT author, groups, created_at_ms FROM received WHERE name = ?", (name,)
        ).fetchone()
        self._db.execute("DELETE FROM claims WHERE name = ?", (name,))
        if received is None:
            return
        for index in range(int(received[1])):
            self._db.execute(
                "INSERT INTO inbox_groups VALUES (?, ?, ?, 0, 'quarantined', 0, NULL, ?)"
                " ON CONFLICT (name, group_index) DO UPDATE SET state = 'quarantined' WHERE state IN ('ready', 'used')",
                (name, index, received[0], received[2]),
            )
            detail = f"the learner ended {MAX_ATTEMPTS} times while it worked on this batch"
            self._add_verdict(name, PeerId(received[0]), GroupVerdict(index, 0, "rejected", "quarantined", detail))

    def record_check(
        self, row: ReceivedRow, verdicts: Sequence[GroupVerdict], *, round_number: int, created_at_ms: int
    ) -> None:
        """Commit the content check of one batch and end its claim."""
        with transaction(self._db):
            for verdict in verdicts:
                state = "ready" if verdict.outcome == "accepted" else "rejected"
                self._db.execute(
                    "INSERT INTO inbox_groups VALUES (?, ?, ?, ?, ?, ?, NULL, ?)",
                    (row.name, verdict.group_index, row.author, verdict.sequences, state, round_number, created_at_ms),
                )
                self._add_verdict(row.name, row.author, verdict)
            self._db.execute("DELETE FROM claims WHERE name = ?", (row.name,))

    def _add_verdict(self, name: BatchName, author: PeerId, verdict: GroupVerdict) -> None:
        self._db.execute(
            "INSERT INTO verdicts (name, group_index, author, outcome, reason, detail, at_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, verdict.group_index, author, verdict.outcome, verdict.reason, verdict.detail[:300], now_ms()),
        )

    # --- peers' groups: use -----------------------------------------------------------------

    def ready(self, limit: int) -> list[ReadyGroup]:
        """Groups that may be trained on, newest first."""
        rows = self._db.execute(
            "SELECT g.name, g.group_index, g.author, r.delivered_by, r.address_range, r.received_at_ms,"
            " g.arrived_round, (SELECT count(*) FROM inbox_groups h"
            "  WHERE h.author = g.author AND h.state IN ('ready', 'used', 'expired')),"
            " EXISTS (SELECT 1 FROM claims c WHERE c.name = g.name)"
            " FROM inbox_groups g JOIN received r ON r.name = g.name WHERE g.state = 'ready'"
            " ORDER BY r.received_at_ms DESC, g.name, g.group_index LIMIT ?",
            (limit,),
        ).fetchall()
        return [
            ReadyGroup(
                BatchName(bytes(r[0])), int(r[1]), PeerId(bytes(r[2])), PeerId(bytes(r[3])), str(r[4]),
                int(r[5]), int(r[6]), int(r[7]), bool(r[8]),
            )
            for r in rows
        ]  # fmt: skip

    def sources(self, since_ms: int) -> list[SourceRow]:
        """Authors of batches that arrived since then, most recent first, with the way of their last one."""
        rows = self._db.execute(
            "SELECT author, delivered_by, address_range, max(received_at_ms), (SELECT count(*) FROM inbox_groups h"
            "  WHERE h.author = r.author AND h.state IN ('ready', 'used', 'expired'))"
            " FROM received r WHERE received_at_ms >= ? GROUP BY author ORDER BY 4 DESC LIMIT 1000",
            (since_ms,),
        ).fetchall()
        return [SourceRow(PeerId(bytes(r[0])), PeerId(bytes(r[1])), str(r[2]), int(r[4])) for r in rows]

    def arrivals(self, limit: int) -> list[tuple[PeerId, int]]:
        """Author and time (ms) of the newest batches."""
        rows = self._db.execute(
            "SELECT author, received_at_ms FROM received ORDER BY received_at_ms DESC LIMIT ?", (limit,)
        ).fetchall()
        return [(PeerId(bytes(r[0])), int(r[1])) for r in rows]

    def unchecked_sources(self) -> list[SourceRow]:
        """Authors of batches without verdicts, with the way of one of them."""
        rows = self._db.execute(
            "SELECT author, delivered_by, address_range, (SELECT count(*) FROM inbox_groups h"
            "  WHERE h.author = r.author AND h.state IN ('ready', 'used', 'expired'))"
            " FROM received r WHERE NOT EXISTS (SELECT 1 FROM inbox_groups g WHERE g.name = r.name)"
            " GROUP BY author LIMIT 1000"
        ).fetchall()
        return [SourceRow(PeerId(bytes(r[0])), PeerId(bytes(r[1])), str(r[2]), int(r[3])) for r in rows]

    def load(self, name: BatchName) -> bytes | None:
        row = self._db.execute("SELECT data FROM received WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def expire(self, *, oldest_live_ms: int, oldest_round: int) -> int:
        """Give up ready groups that are too old by time or by rounds since arrival."""
        with transaction(self._db):
            cursor = self._db.execute(
                "UPDATE inbox_groups SET state = 'expired' WHERE state = 'ready'"
                " AND (created_at_ms < ? OR arrived_round < ?)",
                (oldest_live_ms, oldest_round),
            )
        return cursor.rowcount
