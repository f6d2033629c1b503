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
OWN_ORIGIN = OWN.decode()


@dataclass(frozen=True, slots=True)
class AuthorRound:
    """One author in one round's step: sequences by what became of them.

    ``agreement`` is the cosine of the gradient from these sequences with the gradient on held-out prompts, in the
    rounds in which it was measured; ``weight`` the factor on the loss of its sequences, where authors are weighted.
    """

    author: bytes
    sequences: int = 0
    trained: int = 0
    filtered: int = 0
    zero_advantage: int = 0
    excluded: int = 0
    agreement: float | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One agreement of one round. ``origin`` is "own" or a peer's hex id; ``trained`` counts sequences."""

    origin: str
    round: int
    agreement: float
    trained: int


@dataclass(frozen=True, slots=True)
class AuthorTotals:
    """Sums over the rounds that are kept. ``agreement_sum`` and ``agreement_squares`` are over ``measured`` rounds.

    ``weight`` is that of the last of these rounds.
    """

    author: bytes
    sequences: int
    trained: int
    filtered: int
    zero_advantage: int
    excluded: int
    measured: int
    agreement_sum: float
    agreement_squares: float
    weight: float | None = None


def measurements_of(rows: Sequence[AuthorRound], round_number: int) -> list[Measurement]:
    """Those among a round's rows that were measured, without that of all peers together."""
    return [
        Measurement(_origin(row.author), round_number, row.agreement, row.trained)
        for row in rows
        if row.agreement is not None and row.author != PEERS
    ]


def _origin(author: bytes) -> str:
    return OWN_ORIGIN if author == OWN else author.hex()


def record(database: sqlite3.Connection, round_number: int, rows: Sequence[AuthorRound]) -> None:
    """Within the transaction that commits the round."""
    database.executemany(
        "INSERT OR REPLACE INTO author_rounds"
        " (round, author, sequences, trained, filtered, zero_advantage, excluded, agreement, weight)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                round_number, r.author, r.sequences, r.trained, r.filtered, r.zero_advantage, r.excluded, r.agreement,
                r.weight,
            )
            for r in rows
        ],
    )  # fmt: skip
    database.execute("DELETE FROM author_rounds WHERE round <= ?", (round_number - KEPT_AUTHOR_ROUNDS,))


def rewind(database: sqlite3.Connection, round_number: int) -> None:
    """Forget what comes after a round that is done again."""
    database.execute("DELETE FROM author_rounds WHERE round > ?", (round_number,))


def totals(database: sqlite3.Connection) -> list[AuthorTotals]:
    """Over the last ``KEPT_AUTHOR_ROUNDS`` rounds; the authors most used first, 500 at most."""
    rows = database.execute(
        "SELECT author, sum(sequences), sum(trained), sum(filtered), sum(zero_advantage), sum(excluded),"
        " count(agreement), coalesce(sum(agreement), 0.0), coalesce(sum(agreement * agreement), 0.0),"
        # SQLite takes a bare column from the row that has the maximum.
        " weight, max(round)"
        " FROM author_rounds GROUP BY author ORDER BY sum(sequences) DESC LIMIT 502"
    ).fetchall()
    return [AuthorTotals(bytes(r[0]), *r[1:-1]) for r in rows]


def measurements(database: sqlite3.Connection) -> list[Measurement]:
    """All that are kept, oldest first: at most ``KEPT_AUTHOR_ROUNDS`` of each author."""
    rows = database.execute(
        "SELECT author, round, agreement, trained FROM author_rounds"
        " WHERE agreement IS NOT NULL AND author <> ? ORDER BY round, author",
        (PEERS,),
    ).fetchall()
    return [Measurement(_origin(bytes(r[0])), int(r[1]), float(r[2]), int(r[3])) for r in rows]
