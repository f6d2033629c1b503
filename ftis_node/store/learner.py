"""The learner's side of the store: the unsigned outbox, claims, verdicts and progress.

The checkpoint is the authority. ``rewind`` makes the tables agree with it after a crash: what was
trained after the checkpoint is unused again, and groups already in the outbox are used rather than
generated anew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.errors import StoreError
from ftis_node.store import authors
from ftis_node.store.authors import AuthorRound, Measurement
from ftis_node.store.inbox import InboxStore
from ftis_node.store.reports import RoundReport
from ftis_node.store.schema import open_database, transaction
from ftis_node.types import BatchName, LocalProfile, PeerId

KEPT_ROUNDS = 10_000
KEPT_VERDICTS = 20_000


@dataclass(frozen=True, slots=True)
class OwnPayload:
    """An outbox entry of this node, as the learner reads it back."""

    id: int
    created_at_ms: int
    window: int
    payload: bytes


class LearnerStore:
    """Owned by the learner process."""

    def __init__(self, home: Path) -> None:
        self._db: sqlite3.Connection = open_database(home, durable=True)
        self.inbox = InboxStore(self._db)

    def close(self) -> None:
        self._db.close()

    # --- state ------------------------------------------------------------------------------

    def _put(self, key: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO learner_state VALUES (?, ?)", (key, value))

    def put_profile(self, profile: LocalProfile, *, model: str, parameters: int, trainable: int) -> None:
        """Tell the network half and ``health`` what is trained here."""
        with transaction(self._db):
            self._put("tokenizer_fingerprint", profile.tokenizer_fingerprint)
            self._put("vocabulary_size", b"%d" % profile.vocabulary_size)
            self._put("model", model.encode())
            self._put("parameters", b"%d" % parameters)
            self._put("trainable_parameters", b"%d" % trainable)

    def put_memory(self, text: str) -> None:
        """How the work is cut to fit into memory, in words."""
        self._put("memory", text.encode())

    def enter_step(self, micro_batch_tokens: int) -> None:
        """A step begins; until ``leave_step`` a death of this process is a death within it."""
        self._put("step_budget", str(micro_batch_tokens).encode())

    def leave_step(self) -> None:
        self._db.execute("DELETE FROM learner_state WHERE key = 'step_budget'")

    def died_in_step(self) -> int | None:
        """The micro-batch budget of the step in which this learner's last process ended."""
        row = self._db.execute("SELECT value FROM learner_state WHERE key = 'step_budget'").fetchone()
        return None if row is None else int(row[0])

    def put_activity(self, activity: str, *, round_number: int, until_ms: int | None = None) -> None:
        """What the learner does or waits for from now on."""
        value = {"activity": activity, "round": round_number, "since_ms": now_ms(), "until_ms": until_ms}
        with transaction(self._db):
            self._put("activity", json.dumps(value).encode())

    def run_manifest(self) -> bytes:
        """The run manifest that the network half settled on. Raises StoreError."""
        return self._network_value("manifest")

    def _network_value(self, key: str) -> bytes:
        row = self._db.execute("SELECT value FROM network_state WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise StoreError(f"the store has no {key}: start the node with `ftis-node join`")
        return bytes(row[0])

    def peer_id(self) -> PeerId:
        """Whose prompts are drawn here. Raises StoreError when the network half hasn't said yet."""
        return PeerId(self._network_value("peer_id"))

    def settle_seed(self, configured: int | None, fresh: int) -> int:
        """The seed of this home: the configured one, else the one drawn at the first start."""
        row = self._db.execute("SELECT value FROM learner_state WHERE key = 'seed'").fetchone()
        seed = configured if configured is not None else int(bytes(row[0])) if row is not None else fresh
        with transaction(self._db):
            self._put("seed", b"%d" % seed)
        return seed

    # --- own groups -------------------------------------------------------------------------

    def next_slot(self, window: int) -> int:
        """The first slot of the window that isn't in the outbox yet."""
        row = self._db.execute("SELECT max(next_slot) FROM outbox WHERE window = ?", (window,)).fetchone()
        return int(row[0] or 0)

    def add_outbox(
        self,
        payloads: Sequence[tuple[bytes, int]],
        *,
        round_number: int,
        created_at_ms: int,
        window: int,
        next_slot: int,
        kept: Sequence[tuple[bytes, int]] = (),
    ) -> None:
        """Hand (payload, groups) over for signing, but for those that are ``kept`` here; durable when this returns."""
        rows = [(payload, groups, False) for payload, groups in payloads]
        rows += [(payload, groups, True) for payload, groups in kept]
        with transaction(self._db):
            self._db.executemany(
                "INSERT INTO outbox (round, created_at_ms, window, next_slot, payload, groups, kept)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(round_number, created_at_ms, window, next_slot, *row) for row in rows],
            )

    def own_payloads(self, round_number: int) -> list[OwnPayload]:
        """What was generated for a round already, also before a crash."""
        rows = self._db.execute(
            "SELECT id, created_at_ms, window, payload FROM outbox WHERE round = ? ORDER BY id", (round_number,)
        ).fetchall()
        return [OwnPayload(int(row[0]), int(row[1]), int(row[2]), bytes(row[3])) for row in rows]

    # --- rounds -----------------------------------------------------------------------------------

    def finish_round(
        self,
        round_number: int,
        used: Sequence[tuple[BatchName, int]],
        report: RoundReport,
        by_author: Sequence[AuthorRound],
        *,
        forget_before_ms: int,
    ) -> None:
        """Commit a trained round: its groups are used, its claims end, what is reported of it is kept."""
        with transaction(self._db):
            self._db.executemany(
                "UPDATE inbox_groups SET state = 'used', used_round = ? WHERE name = ? AND group_index = ?",
                [(round_number, name, index) for name, index in used],
            )
            self._db.executemany("DELETE FROM claims WHERE name = ?", [(name,) for name in {n for n, _ in used}])
            self._db.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (round_number, now_ms(), report.model_dump_json())
            )
            authors.record(self._db, round_number, by_author)
            self._forget(round_number, forget_before_ms)

    def _forget(self, round_number: int, before_ms: int) -> None:
        """Bound every table of this side."""
        self._db.execute("DELETE FROM rounds WHERE round <= ?", (round_number - KEPT_ROUNDS,))
        # A batch that the network half still holds must stay known here, or it would be trained twice.
        self._db.execute(
            "DELETE FROM inbox_groups WHERE created_at_ms < ? AND name NOT IN (SELECT name FROM received)", (before_ms,)
        )
        self._db.execute("DELETE FROM claims WHERE name NOT IN (SELECT name FROM received)")
        self._db.execute("DELETE FROM outbox WHERE created_at_ms < ? AND round < ?", (before_ms, round_number))
        self._db.execute("DELETE FROM verdicts WHERE id <= (SELECT max(id) FROM verdicts) - ?", (KEPT_VERDICTS,))

    def rewind(self, round_number: int) -> int:
        """Make the tables agree with a checkpoint of this round; returns how many groups are unused again."""
        with transaction(self._db):
            cursor = self._db.execute(
                "UPDATE inbox_groups SET state = 'ready', used_round = NULL WHERE state = 'used' AND used_round > ?",
                (round_number,),
            )
            self._db.execute("DELETE FROM rounds WHERE round > ?", (round_number,))
            authors.rewind(self._db, round_number)
        return cursor.rowcount

    def measurements(self) -> list[Measurement]:
        """Every author's measured agreements, oldest first; after ``rewind`` those before the checkpoint."""
        return authors.measurements(self._db)

    def last_report(self) -> RoundReport | None:
        row = self._db.execute("SELECT report FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return None if row is None else RoundReport.model_validate_json(row[0])
