"""The tables, and opening the database file.

WAL lets one side read while the other writes. ``synchronous = FULL`` makes a commit survive a power failure:
the learner's side always has it, the network half where something is signed on the strength of it. What peers
sent may be lost with the power (not with the process): they send it again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ftis_node.errors import HomeError, StoreError
from ftis_node.store.connection import connect

SCHEMA_VERSION = 6
STORE_FILE = "store.sqlite3"

NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs", "ceph", "lustre"})

NETWORK_TABLES = """
CREATE TABLE IF NOT EXISTS network_state (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS received (
    name BLOB PRIMARY KEY, author BLOB NOT NULL, delivered_by BLOB NOT NULL, address_range TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL, received_at_ms INTEGER NOT NULL, window INTEGER NOT NULL,
    groups INTEGER NOT NULL, sequences INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS received_by_age ON received (created_at_ms);
CREATE INDEX IF NOT EXISTS received_by_arrival ON received (received_at_ms, author);
CREATE TABLE IF NOT EXISTS received_slots (
    author BLOB NOT NULL, window INTEGER NOT NULL, slot INTEGER NOT NULL, keep_until_ms INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (author, window, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
    name BLOB PRIMARY KEY, author BLOB NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    header BLOB NOT NULL, signature BLOB NOT NULL, keep_until_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS seen_by_sequence ON seen (author, epoch, sequence);
CREATE TABLE IF NOT EXISTS published (
    name BLOB PRIMARY KEY, outbox_id INTEGER NOT NULL UNIQUE, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (epoch, sequence)
) STRICT;
CREATE TABLE IF NOT EXISTS rejections (
    peer BLOB NOT NULL, reason TEXT NOT NULL, blame TEXT NOT NULL, count INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    detail TEXT NOT NULL, PRIMARY KEY (peer, reason, blame)
) STRICT;
CREATE TABLE IF NOT EXISTS peers (
    peer BLOB PRIMARY KEY, address TEXT, model TEXT NOT NULL DEFAULT '', version TEXT NOT NULL DEFAULT '',
    connected INTEGER NOT NULL DEFAULT 0, direction TEXT NOT NULL DEFAULT '',
    first_contact_ms INTEGER NOT NULL, last_contact_ms INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL DEFAULT 0, bytes_out INTEGER NOT NULL DEFAULT 0,
    accepted_groups INTEGER NOT NULL DEFAULT 0, rejected_groups INTEGER NOT NULL DEFAULT 0,
    score REAL NOT NULL DEFAULT 0, score_at_ms INTEGER NOT NULL DEFAULT 0, round_trip_ms REAL,
    banned_until_ms INTEGER NOT NULL DEFAULT 0, ban_reason TEXT NOT NULL DEFAULT '', ban_proof BLOB,
    tokenizer_fingerprint BLOB NOT NULL DEFAULT x'', throttled_ms INTEGER NOT NULL DEFAULT 0,
    throttled_at_ms INTEGER NOT NULL DEFAULT 0, twin_at_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS pins (address TEXT PRIMARY KEY, peer BLOB NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS addresses (
    peer BLOB NOT NULL, target TEXT NOT NULL, learned_ms INTEGER NOT NULL, reached_ms INTEGER NOT NULL,
    failed_ms INTEGER NOT NULL, failures INTEGER NOT NULL, PRIMARY KEY (peer, target)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dials (
    address TEXT PRIMARY KEY, state TEXT NOT NULL, since_ms INTEGER NOT NULL, retry_at_ms INTEGER, peer BLOB
) STRICT;
"""

LEARNER_TABLES = """
CREATE TABLE IF NOT EXISTS learner_state (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    window INTEGER NOT NULL, next_slot INTEGER NOT NULL, groups INTEGER NOT NULL, payload BLOB NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS outbox_by_round ON outbox (round);
CREATE INDEX IF NOT EXISTS outbox_by_window ON outbox (window);
CREATE TABLE IF NOT EXISTS claims (name BLOB PRIMARY KEY, attempts INTEGER NOT NULL, open INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS inbox_groups (
    name BLOB NOT NULL, group_index INTEGER NOT NULL, author BLOB NOT NULL, sequences INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ready', 'used', 'rejected', 'expired', 'quarantined')),
    arrived_round INTEGER NOT NULL, used_round INTEGER, created_at_ms INTEGER NOT NULL, reward REAL, spread REAL,
    PRIMARY KEY (name, group_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS inbox_by_state ON inbox_groups (state);
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL, group_index INTEGER NOT NULL, author BLOB NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, report TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS author_rounds (
    round INTEGER NOT NULL, author BLOB NOT NULL, sequences INTEGER NOT NULL, trained INTEGER NOT NULL,
    filtered INTEGER NOT NULL, zero_advantage INTEGER NOT NULL, excluded INTEGER NOT NULL, agreement REAL,
    weight REAL, PRIMARY KEY (round, author)
) STRICT, WITHOUT ROWID;
"""


def open_database(home: Path, *, durable: bool) -> sqlite3.Connection:
    """Open (or make) the store for one side. Raises StoreError, HomeError.

    ``durable``: every transaction survives a power failure; else only a ``durable_transaction`` does.
    """
    refuse_network_filesystem(home)
    path = home / STORE_FILE
    try:
        database = connect(path)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with transaction(database):
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if not 0 <= version <= SCHEMA_VERSION:
                raise StoreError(
                    f"{path}: written by a newer version (schema {version}, this one reads {SCHEMA_VERSION});"
                    " use the software version that wrote it, or start with a new --home"
                )
            if version != SCHEMA_VERSION:
                _bring_up_to_date(database)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if not durable:
            database.execute("PRAGMA synchronous = NORMAL")
    except (sqlite3.DatabaseError, OSError) as error:
        raise StoreError(f"{path}: can't be opened: {error}") from error
    path.chmod(0o600)
    return database


def _bring_up_to_date(database: sqlite3.Connection) -> None:
    """Make what is missing, in an empty store and in one of any earlier version: an update loses nothing.

    What is there is compared with what is wanted, and not the version with a list of changes: so it doesn't matter
    which of the states between two versions wrote the store. A new column has to have a default.
    """
    wanted = sqlite3.connect(":memory:")
    wanted.executescript(NETWORK_TABLES + LEARNER_TABLES)
    for (table,) in wanted.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"):
        there = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
        for _, name, kind, not_null, default, _ in wanted.execute(f"PRAGMA table_info({table})") if there else ():
            if name not in there:
                constraint = f"NOT NULL DEFAULT {default}" if not_null else ""
                database.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind} {constraint}")
    wanted.close()
    for statement in (NETWORK_TABLES + LEARNER_TABLES).split(";"):
        database.execute(statement)


def open_read_only(home: Path) -> sqlite3.Connection:
    """Open the store for looking only; works beside a running daemon and without one."""
    path = home / STORE_FILE
    if not path.exists():
        raise StoreError(f"{path}: there is no store here; has a node been started with this --home?")
    try:
        database, version = _look_into(path, "mode=ro")
    except sqlite3.OperationalError as error:
        database, version = _look_into_read_only(path, error)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: can't be read: {error}") from error
    if version == 0:
        database.close()
        raise StoreError(f"{path}: is being made by a node that starts right now")
    if version != SCHEMA_VERSION:
        database.close()
        raise StoreError(
            f"{path}: written by another version (schema {version}, this one reads {SCHEMA_VERSION});"
            " an older store is brought up to date when a node starts on it"
        )
    return database


def _look_into(path: Path, mode: str) -> tuple[sqlite3.Connection, int]:
    """A connection and the version of what lies there."""
    database = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=2.0, isolation_level=None)
    try:
        return database, int(database.execute("PRAGMA user_version").fetchone()[0])
    except BaseException:  # a stop signal too must not leave it open
        database.close()
        raise


def _look_into_read_only(path: Path, error: sqlite3.OperationalError) -> tuple[sqlite3.Connection, int]:
    """On a disk that can't be written WAL has no place for its index: what was last folded in can be read."""
    if os.access(path.parent, os.W_OK):
        raise StoreError(f"{path}: can't be read: {error}") from error
    try:
        return _look_into(path, "immutable=1")
    except sqlite3.DatabaseError as second:
        raise StoreError(f"{path}: can't be read: {second}") from second


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. IMMEDIATE, so that two writers wait for each other instead of failing halfway."""
    if database.in_transaction:  # a stop signal cut the one before off where no handler could see it
        database.execute("ROLLBACK")
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException:  # also a stop signal in the middle of a write
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def durable_transaction(database: sqlite3.Connection) -> Iterator[None]:
    """On a connection that doesn't wait for the disk: one that does."""
    database.execute("PRAGMA synchronous = FULL")
    try:
        with transaction(database):
            yield
    finally:
        database.execute("PRAGMA synchronous = NORMAL")


def refuse_network_filesystem(home: Path) -> None:
    """WAL needs shared memory between processes of one machine; network filesystems corrupt it."""
    kind = _filesystem_of(home.resolve())
    if kind in NETWORK_FILESYSTEMS:
        raise HomeError(f"{home}: lies on a network filesystem ({kind}); use a local disk for --home")


def _filesystem_of(path: Path) -> str:
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():  # not Linux: nothing is known, and nothing is refused
        return ""
    best, kind = "", ""
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount_point = before.split()[4].replace("\\040", " ")
        # A later line for the same mount point hides the earlier one.
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, after.split()[0]
    return kind
