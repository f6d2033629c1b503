-- The tables as version 1 of the store had them; see test_an_older_store_is_brought_up_to_date.
CREATE TABLE network_state (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE received (
    name BLOB PRIMARY KEY, author BLOB NOT NULL, delivered_by BLOB NOT NULL, address_range TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL, received_at_ms INTEGER NOT NULL, window INTEGER NOT NULL,
    groups INTEGER NOT NULL, sequences INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX received_by_age ON received (created_at_ms);
CREATE TABLE received_slots (
    author BLOB NOT NULL, window INTEGER NOT NULL, slot INTEGER NOT NULL, keep_until_ms INTEGER NOT NULL,
    PRIMARY KEY (author, window, slot)
) STRICT, WITHOUT ROWID;
CREATE TABLE seen (
    name BLOB PRIMARY KEY, author BLOB NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    header BLOB NOT NULL, signature BLOB NOT NULL, keep_until_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX seen_by_sequence ON seen (author, epoch, sequence);
CREATE TABLE published (
    name BLOB PRIMARY KEY, outbox_id INTEGER NOT NULL UNIQUE, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, data BLOB NOT NULL, UNIQUE (epoch, sequence)
) STRICT;
CREATE TABLE rejections (
    peer BLOB NOT NULL, reason TEXT NOT NULL, blame TEXT NOT NULL, count INTEGER NOT NULL, last_ms INTEGER NOT NULL,
    detail TEXT NOT NULL, PRIMARY KEY (peer, reason, blame)
) STRICT;
CREATE TABLE peers (
    peer BLOB PRIMARY KEY, address TEXT, model TEXT NOT NULL DEFAULT '', version TEXT NOT NULL DEFAULT '',
    connected INTEGER NOT NULL DEFAULT 0, direction TEXT NOT NULL DEFAULT '',
    first_contact_ms INTEGER NOT NULL, last_contact_ms INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL DEFAULT 0, bytes_out INTEGER NOT NULL DEFAULT 0,
    accepted_groups INTEGER NOT NULL DEFAULT 0, rejected_groups INTEGER NOT NULL DEFAULT 0,
    score REAL NOT NULL DEFAULT 0, score_at_ms INTEGER NOT NULL DEFAULT 0, round_trip_ms REAL,
    banned_until_ms INTEGER NOT NULL DEFAULT 0, ban_reason TEXT NOT NULL DEFAULT '', ban_proof BLOB
) STRICT;
CREATE TABLE pins (address TEXT PRIMARY KEY, peer BLOB NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE addresses (
    peer BLOB NOT NULL, target TEXT NOT NULL, learned_ms INTEGER NOT NULL, reached_ms INTEGER NOT NULL,
    failed_ms INTEGER NOT NULL, failures INTEGER NOT NULL, PRIMARY KEY (peer, target)
) STRICT, WITHOUT ROWID;
CREATE TABLE dials (
    address TEXT PRIMARY KEY, state TEXT NOT NULL, since_ms INTEGER NOT NULL, retry_at_ms INTEGER, peer BLOB
) STRICT;

CREATE TABLE learner_state (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, round INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    window INTEGER NOT NULL, next_slot INTEGER NOT NULL, groups INTEGER NOT NULL, payload BLOB NOT NULL
) STRICT;
CREATE INDEX outbox_by_round ON outbox (round);
CREATE INDEX outbox_by_window ON outbox (window);
CREATE TABLE claims (name BLOB PRIMARY KEY, attempts INTEGER NOT NULL, open INTEGER NOT NULL) STRICT;
CREATE TABLE inbox_groups (
    name BLOB NOT NULL, group_index INTEGER NOT NULL, author BLOB NOT NULL, sequences INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ready', 'used', 'rejected', 'expired', 'quarantined')),
    arrived_round INTEGER NOT NULL, used_round INTEGER, created_at_ms INTEGER NOT NULL,
    PRIMARY KEY (name, group_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX inbox_by_state ON inbox_groups (state);
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL, group_index INTEGER NOT NULL, author BLOB NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, report TEXT NOT NULL) STRICT;
PRAGMA user_version = 1;
