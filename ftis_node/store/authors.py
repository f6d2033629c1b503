"""What became of each author's sequences, round by round: the table ``author_rounds``, written by the learner.

An author is a peer id, ``OWN`` (this node's own groups) or ``PEERS`` (all peers together, which only has an agreement).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_AUTHOR_ROUNDS = 1000

OWN = b"own"
PEERS = b"peers"


@dataclass(frozen=True, slots=True)
class AuthorRound:
    """One author in one round's step: sequences by what became of them.

    ``agreement`` is the cosine of the gradient from these sequences with the gradient on held-out prompts, in the
    rounds in which it was measured.
    """

    author: bytes
    sequences: int = 0
    trained: int = 0
    filtered: int = 0
    zero_advantage: int = 0
    excluded: int = 0
    agreement: float | None = None


@dataclass(frozen=True, slots=True)
class AuthorTotals:
    """Sums over the rounds that are kept. ``agreement_sum`` and ``agreement_squares`` are over ``measured`` rounds."""

    author: bytes
    sequences: int
    trained: int
    filtered: int
    zero_advantage: int
    excluded: int
    measured: int
    agreement_sum: float
    agreement_squares: float


def record(database: sqlite3.Connection, round_number: int, rows: Sequence[AuthorRound]) -> None:
    """Within the transaction that commits the round."""
    database.executemany(
        "INSERT OR REPLACE INTO author_rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (round_number, r.author, r.sequences, r.trained, r.filtered, r.zero_advantage, r.excluded, r.agreement)
            for r in rows
        ],
    )
    database.execute("DELETE FROM author_rounds WHERE round <= ?", (round_number - KEPT_AUTHOR_ROUNDS,))


def rewind(database: sqlite3.Connection, round_number: int) -> None:
    """Forget what comes after a round that is done again."""
    database.execute("DELETE FROM author_rounds WHERE round > ?", (round_number,))


def totals(database: sqlite3.Connection) -> list[AuthorTotals]:
    """Over the last ``KEPT_AUTHOR_ROUNDS`` rounds; the authors most used first, 500 at most."""
    rows = database.execute(
        "SELECT author, sum(sequences), sum(trained), sum(filtered), sum(zero_advantage), sum(excluded),"
        " count(agreement), coalesce(sum(agreement), 0.0), coalesce(sum(agreement * agreement), 0.0)"
        " FROM author_rounds GROUP BY author ORDER BY sum(sequences) DESC LIMIT 502"
    ).fetchall()
    return [AuthorTotals(bytes(r[0]), *r[1:]) for r in rows]
