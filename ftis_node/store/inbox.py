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
    """What the content check found: ``outcome`` is ``accepted``, ``rejected`` or ``unusable``.

    Of an accepted group ``reward`` and ``spread``, and whether it is any use here.
    """

    group_index: int
    sequences: int
    outcome: str
    reason: str = ""
    detail: str = ""
    reward: float | None = None
    spread: float | None = None
    useful: bool = True

    @property
    def state(self) -> str:
        """What becomes of it. An author's history counts what is given up like what is used."""
        if self.outcome != "accepted":
            return "rejected"
        return "ready" if self.useful else "expired"


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A checked group that may be trained on; ``suspect`` if an earlier attempt at it crashed.

    ``reward`` is the mean of its rewards, ``spread`` their standard deviation; None if an earlier version checked it.
    """

    name: BatchName
    group_index: int
    author: PeerId
    delivered_by: PeerId
    address_range: str
    received_at_ms: int
    arrived_round: int
    author_groups: int
    suspect: bool
    reward: float | None
    spread: float | None


@dataclass(frozen=True, slots=True)
class SourceRow:
    """An author of batches, how one of them came, and how many of its groups were accepted."""

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
        """Received batches without verdicts: authors in turns, each with the one that came last.

        In no order that an author can claim, and none that who sends the most would fill.
        """
        rows = self._db.execute(
            "WITH waiting AS (SELECT name, received_at_ms,"
            "  row_number() OVER (PARTITION BY author ORDER BY received_at_ms DESC, name) AS turn"
            "  FROM received r WHERE NOT EXISTS (SELECT 1 FROM inbox_groups g WHERE g.name = r.name))"
            " SELECT r.name, r.author, r.data FROM waiting w JOIN received r ON r.name = w.name"
            " ORDER BY w.turn, w.received_at_ms DESC, w.name LIMIT ?",
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
                "INSERT INTO inbox_groups VALUES (?, ?, ?, 0, 'quarantined', 0, NULL, ?, NULL, NULL)"
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
                self._db.execute(
                    "INSERT INTO inbox_groups VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)",
                    (
                        row.name, verdict.group_index, row.author, verdict.sequences, verdict.state, round_number,
                        created_at_ms, verdict.reward, verdict.spread,
                    ),
                )  # fmt: skip
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
            " EXISTS (SELECT 1 FROM claims c WHERE c.name = g.name), g.reward, g.spread"
            " FROM inbox_groups g JOIN received r ON r.name = g.name WHERE g.state = 'ready'"
            " ORDER BY r.received_at_ms DESC, g.name, g.group_index LIMIT ?",
            (limit,),
        ).fetchall()
        return [
            ReadyGroup(
                BatchName(bytes(r[0])), int(r[1]), PeerId(bytes(r[2])), PeerId(bytes(r[3])), str(r[4]),
                int(r[5]), int(r[6]), int(r[7]), bool(r[8]), r[9], r[10],
            )
            for r in rows
        ]  # fmt: skip

    def note_rewards(self, name: BatchName, group_index: int, *, reward: float, spread: float) -> None:
        """Of a group that an earlier version checked, which kept neither."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE inbox_groups SET reward = ?, spread = ? WHERE name = ? AND group_index = ?",
                (reward, spread, name, group_index),
            )

    def authors_heard(self) -> int:
        """How many authors' batches are here."""
        return int(self._db.execute("SELECT count(DISTINCT author) FROM received").fetchone()[0])

    def unchecked_sources(self) -> list[SourceRow]:
        """Authors of batches without verdicts, with the way of one of them."""
        rows = self._db.execute(
            "SELECT author, delivered_by, address_range, (SELECT count(*) FROM inbox_groups h"
            "  WHERE h.author = r.author AND h.state IN ('ready', 'used', 'expired'))"
            " FROM received r WHERE NOT EXISTS (SELECT 1 FROM inbox_groups g WHERE g.name = r.name)"
            " GROUP BY author LIMIT 1000"
        ).fetchall()
        return [SourceRow(PeerId(bytes(r[0])), PeerId(bytes(r[1])), str(r[2]), int(r[3])) for r in rows]

    def give_up(self, groups: Sequence[tuple[BatchName, int]]) -> None:
        """Ready groups that turned out to be gone."""
        with transaction(self._db):
            self._db.executemany(
                "UPDATE inbox_groups SET state = 'expired' WHERE name = ? AND group_index = ? AND state = 'ready'",
                groups,
            )
            self._db.executemany("DELETE FROM claims WHERE name = ?", [(name,) for name in {n for n, _ in groups}])

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
