"""The store: what is acknowledged stays, each side writes its own tables, the checkpoint is the authority."""

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftis_node.clock import now_ms
from ftis_node.errors import StoreError
from ftis_node.store import authors, schema
from ftis_node.store.authors import AuthorRound, Measurement
from ftis_node.store.inbox import GroupVerdict, ReceivedRow
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore, ReceivedBatch
from ftis_node.store.reader import StoreReader
from ftis_node.store.reports import RoundReport
from ftis_node.types import BatchName, PeerId

ALICE = PeerId(b"a" * 32)
BOB = PeerId(b"b" * 32)
FAR = 2**60


def batch(number: int, *, author: PeerId = ALICE, sequence: int | None = None, slots: tuple[int, ...] = (0, 1)):
    return ReceivedBatch(
        name=BatchName(number.to_bytes(32, "big")),
        author=author,
        epoch=1,
        sequence=number if sequence is None else sequence,
        created_at_ms=now_ms(),
        window=number,
        slots=slots,
        sequences=4,
        header=b"header %d" % number,
        signature=b"signature %d" % number,
        data=b"x" * 100,
    )


def accept(store: NetworkStore, item: ReceivedBatch, max_bytes: int = 10_000) -> None:
    store.accept(item, delivered_by=BOB, address_range="10.0.0.0/24", keep_until_ms=FAR, max_bytes=max_bytes)


def row_of(item: ReceivedBatch) -> ReceivedRow:
    return ReceivedRow(item.name, item.author, item.data)


def check_all(store: LearnerStore, item: ReceivedBatch, round_number: int = 1) -> None:
    store.inbox.claim([item.name])
    verdicts = [GroupVerdict(index, 2, "accepted") for index in range(len(item.slots))]
    store.inbox.record_check(row_of(item), verdicts, round_number=round_number, created_at_ms=item.created_at_ms)


def report(round_number: int) -> RoundReport:
    return RoundReport(round=round_number, own_groups=1, peer_groups=1, stepped=True)


@pytest.fixture
def sides(tmp_path: Path):
    network, learner = NetworkStore(tmp_path), LearnerStore(tmp_path)
    yield network, learner
    network.close()
    learner.close()


def test_what_became_of_an_author_follows_the_rounds(tmp_path: Path) -> None:
    learner = LearnerStore(tmp_path)
    for number, agreement in ((1, 0.5), (2, None), (3, -0.5)):
        row = AuthorRound(bytes(32), sequences=4, trained=3, filtered=1, agreement=agreement, weight=1 / number)
        rows = [row, AuthorRound(authors.OWN, trained=8, agreement=0.75), AuthorRound(authors.PEERS, agreement=0.1)]
        learner.finish_round(number, [], report(number), rows if number == 1 else [row], forget_before_ms=0)
    learner.rewind(2)  # round 3 is done again, with other samples
    assert learner.measurements() == [Measurement(bytes(32).hex(), 1, 0.5, 3), Measurement("own", 1, 0.75, 8)]
    learner.close()
    with StoreReader(tmp_path) as store:
        (totals,) = (row for row in store.author_totals() if row.author == bytes(32))
    assert (totals.author, totals.sequences, totals.trained, totals.filtered) == (bytes(32), 8, 6, 2)
    assert (totals.measured, totals.agreement_sum, totals.agreement_squares) == (1, 0.5, 0.25)
    assert totals.weight == 0.5, "that of the last round"


def test_epochs_grow_even_when_the_clock_stands_still(sides, monkeypatch) -> None:
    network, _ = sides
    monkeypatch.setattr("ftis_node.store.network.now_ms", lambda: 1000)
    assert [network.next_epoch() for _ in range(3)] == [1000, 1001, 1002]


def test_every_outbox_entry_is_published_once_with_the_next_sequence_number(sides) -> None:
    network, learner = sides
    for round_number in (1, 2):
        learner.add_outbox([(b"p", 1)], round_number=round_number, created_at_ms=5, window=0, next_slot=round_number)
    sequences = []
    for entry in network.unsigned(10):

        def seal(sequence: int) -> tuple[BatchName, bytes]:
            sequences.append(sequence)
            return BatchName(bytes([sequence]) * 32), b"data"

        network.publish(entry, 7, seal)
    assert sequences == [0, 1]
    assert network.unsigned(10) == []


def test_a_failed_signature_uses_up_no_sequence_number(sides) -> None:
    network, learner = sides
    learner.add_outbox([(b"p", 1)], round_number=1, created_at_ms=5, window=0, next_slot=1)
    (entry,) = network.unsigned(10)

    def broken(sequence: int) -> tuple[BatchName, bytes]:
        raise RuntimeError(f"power failure at {sequence}")

    with pytest.raises(RuntimeError, match="at 0"):
        network.publish(entry, 7, broken)
    assert network.unsigned(10) == [entry]
    network.publish(entry, 7, lambda sequence: (BatchName(bytes([sequence]) * 32), b"d"))
    assert network.get("sequence") == b"0"


def test_a_sighting_tells_names_other_headers_and_slots(sides) -> None:
    network, _ = sides
    first = batch(1)
    accept(network, first)
    again = network.sighting(first.name, ALICE, 1, 1, 1)
    assert again.name_seen
    assert again.other_header is None
    assert again.used_slots == {0: 1, 1: 1}
    twin = network.sighting(BatchName(b"t" * 32), ALICE, 1, 1, 1)
    assert not twin.name_seen
    assert (twin.other_header, twin.other_signature) == (first.header, first.signature)
    assert network.sighting(BatchName(b"o" * 32), BOB, 1, 1, 1).other_header is None
    assert network.unknown([first.name, BatchName(b"n" * 32)]) == {b"n" * 32}


def test_what_was_seen_is_known_after_a_restart(tmp_path) -> None:
    first = NetworkStore(tmp_path)
    accept(first, batch(1))
    first.close()
    second = NetworkStore(tmp_path)
    assert second.sighting(batch(1).name, ALICE, 1, 1, 1).name_seen
    second.close()


def test_the_store_has_a_size(sides) -> None:
    network, _ = sides
    accept(network, batch(1), max_bytes=150)
    with pytest.raises(StoreError, match="holds 100 bytes"):
        accept(network, batch(2), max_bytes=150)
    assert network.unknown([batch(2).name]) == {batch(2).name}


def test_a_group_is_ready_then_used_once(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    assert [row.name for row in learner.inbox.unchecked(10)] == [batch(1).name]
    check_all(learner, batch(1))
    assert learner.inbox.unchecked(10) == []
    first, second = learner.inbox.ready(10)
    assert (first.author, first.delivered_by, first.author_groups, first.suspect) == (ALICE, BOB, 2, False)
    learner.finish_round(2, [(first.name, first.group_index)], report(2), [], forget_before_ms=0)
    assert learner.inbox.ready(10) == [second]


def test_a_rewind_frees_what_was_used_after_the_checkpoint(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    check_all(learner, batch(1))
    first, second = learner.inbox.ready(10)
    learner.finish_round(2, [(first.name, first.group_index)], report(2), [], forget_before_ms=0)
    learner.finish_round(3, [(second.name, second.group_index)], report(3), [], forget_before_ms=0)
    assert learner.rewind(2) == 1
    assert learner.inbox.ready(10) == [second]
    last = learner.last_report()
    assert last is not None
    assert last.round == 2


def test_a_used_group_stays_known_as_long_as_its_batch_is_held(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    check_all(learner, batch(1))
    used = [(group.name, group.group_index) for group in learner.inbox.ready(10)]
    learner.finish_round(2, used, report(2), [], forget_before_ms=FAR)
    assert learner.inbox.unchecked(10) == []  # forgotten too early, it would be trained on again


def test_a_batch_that_crashes_the_learner_twice_is_quarantined(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    for _ in range(2):  # two starts, each ending in a crash during the check
        assert learner.inbox.quarantine_repeated() == []
        learner.inbox.claim([batch(1).name])
    assert learner.inbox.quarantine_repeated() == [batch(1).name]
    assert learner.inbox.unchecked(10) == []
    assert learner.inbox.ready(10) == []
    verdicts = network.fold_verdicts(10)
    assert [verdict.reason for verdict in verdicts] == ["quarantined", "quarantined"]
    assert network.fold_verdicts(10) == []


def test_a_crash_in_training_makes_a_batch_suspect_and_a_clean_stop_does_not(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    check_all(learner, batch(1))
    learner.inbox.claim([batch(1).name])
    learner.inbox.release_unfinished()
    assert not any(group.suspect for group in learner.inbox.ready(10))
    learner.inbox.claim([batch(1).name])
    learner.inbox.quarantine_repeated()  # the next start, after a crash
    assert all(group.suspect for group in learner.inbox.ready(10))
    learner.inbox.claim([batch(1).name])
    learner.inbox.release_unfinished()  # a clean stop takes back its own claim only
    assert all(group.suspect for group in learner.inbox.ready(10))
    learner.finish_round(2, [(batch(1).name, 0)], report(2), [], forget_before_ms=0)
    assert not any(group.suspect for group in learner.inbox.ready(10))


def test_ready_groups_expire_by_time_and_by_rounds(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    check_all(learner, batch(1), round_number=3)
    assert learner.inbox.expire(oldest_live_ms=0, oldest_round=3) == 0
    assert learner.inbox.expire(oldest_live_ms=0, oldest_round=4) == 2
    assert learner.inbox.ready(10) == []


def test_what_teaches_nobody_counts_for_its_author_and_is_no_use(sides) -> None:
    """All-wrong groups are set aside for good; those that are all right stay, with their rewards."""
    network, learner = sides
    accept(network, batch(1, slots=(0, 1, 2)))
    learner.inbox.claim([batch(1).name])
    verdicts = [
        GroupVerdict(0, 2, "accepted", reward=0.0, spread=0.0, useful=False),
        GroupVerdict(1, 2, "accepted", reward=1.0, spread=0.0),
        GroupVerdict(2, 2, "accepted", reward=0.5, spread=0.5),
    ]
    learner.inbox.record_check(row_of(batch(1)), verdicts, round_number=1, created_at_ms=now_ms())
    ready = learner.inbox.ready(10)
    assert [(group.group_index, group.reward, group.spread) for group in ready] == [(1, 1.0, 0.0), (2, 0.5, 0.5)]
    assert {group.author_groups for group in ready} == {3}
    network.fold_verdicts(10)
    (peer,) = network._db.execute("SELECT accepted_groups, rejected_groups FROM peers").fetchall()
    assert peer == (3, 0)
    assert network._db.execute("SELECT count(*) FROM rejections").fetchone() == (0,)


def test_groups_that_turned_out_to_be_gone_are_given_up(sides) -> None:
    network, learner = sides
    accept(network, batch(1))
    check_all(learner, batch(1))
    learner.inbox.claim([batch(1).name])
    learner.inbox.give_up([(batch(1).name, 0)])
    (left,) = learner.inbox.ready(10)
    assert (left.group_index, left.suspect) == (1, False)


def test_authors_are_heard_once_a_batch_of_theirs_is_here(sides) -> None:
    network, learner = sides
    assert learner.inbox.authors_heard() == 0
    accept(network, batch(1))
    accept(network, batch(2))
    accept(network, batch(3, author=BOB))
    assert learner.inbox.authors_heard() == 2


def test_what_is_kept_in_the_outbox_is_not_published_but_resumed(sides) -> None:
    network, learner = sides
    learner.add_outbox([(b"sent", 2)], kept=[(b"kept", 1)], round_number=1, created_at_ms=5, window=0, next_slot=3)
    learner.add_outbox([], kept=[(b"kept too", 1)], round_number=1, created_at_ms=6, window=0, next_slot=4)
    learner.add_outbox([(b"later", 1)], round_number=2, created_at_ms=7, window=0, next_slot=5)
    entries = network.unsigned(10)
    assert [entry.payload for entry in entries] == [b"sent", b"later"]
    for entry in entries:
        network.publish(entry, 1, lambda number: (BatchName(bytes([number]) * 32), b"signed"))
    assert network.unsigned(10) == []
    assert [own.payload for own in learner.own_payloads(1)] == [b"sent", b"kept", b"kept too"]
    assert learner.next_slot(0) == 5
    learner.finish_round(3, [], report(3), [], forget_before_ms=7)
    assert learner.own_payloads(1) == []


def test_slots_go_on_where_the_outbox_ends(sides) -> None:
    _, learner = sides
    assert learner.next_slot(5) == 0
    learner.add_outbox([(b"p", 3)], round_number=1, created_at_ms=5, window=5, next_slot=3)
    assert learner.next_slot(5) == 3
    assert learner.next_slot(6) == 0


def test_old_batches_are_pruned_and_memories_kept_until_their_time(sides) -> None:
    network, _ = sides
    accept(network, batch(1))
    network.prune(oldest_live_ms=FAR)
    assert network.load(batch(1).name) is None
    assert network.sighting(batch(1).name, ALICE, 1, 1, 1).name_seen


def test_sources_of_what_is_not_checked_yet(sides) -> None:
    network, learner = sides
    accept(network, batch(1, author=ALICE))
    accept(network, batch(2, author=BOB))
    assert {row.author for row in learner.inbox.unchecked_sources()} == {ALICE, BOB}
    check_all(learner, batch(1, author=ALICE))
    (left,) = learner.inbox.unchecked_sources()
    assert (left.author, left.delivered_by, left.author_groups) == (BOB, BOB, 0)


def test_bans_end_and_a_shorter_one_does_not_shorten_a_longer_one(sides) -> None:
    network, _ = sides
    network.peers.ban(ALICE, until_ms=now_ms() + 10_000, reason="equivocation", proof=b"proof")
    network.peers.ban(ALICE, until_ms=now_ms() - 1, reason="score", proof=None)
    assert network.peers.banned(ALICE)
    network.peers.ban(BOB, until_ms=now_ms() - 1, reason="score", proof=None)
    assert not network.peers.banned(BOB)


def test_addresses_are_learned_reached_and_forgotten(sides) -> None:
    network, _ = sides
    peers = network.peers
    peers.learn_addresses([(ALICE, f"h:{port}") for port in range(1, 9)])
    assert len(peers.known_addresses()) == 3  # hints about one peer are bounded
    assert peers.reachable_addresses(10) == []  # and not passed on before they were tried
    peers.address_reached(BOB, "bob:1")
    assert peers.reachable_addresses(10) == [(BOB, "bob:1")]
    assert peers.known_addresses()[0].peer == BOB
    for _ in range(12):
        peers.address_failed(ALICE, "h:1")
    assert "h:1" not in [known.target for known in peers.known_addresses()]
    peers.connected(BOB, address="", direction="out", model="", version="", tokenizer_fingerprint=b"")
    assert BOB not in [known.peer for known in peers.known_addresses()]


def test_another_version_and_garbage_are_refused(tmp_path) -> None:
    NetworkStore(tmp_path).close()
    database = sqlite3.connect(tmp_path / schema.STORE_FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="schema 99"):
        NetworkStore(tmp_path)
    with pytest.raises(StoreError, match="schema 99"):
        StoreReader(tmp_path)
    (tmp_path / schema.STORE_FILE).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        NetworkStore(tmp_path)


def test_no_store_is_said_plainly(tmp_path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        StoreReader(tmp_path)


_WRITER = """
import sys
from pathlib import Path
from ftis_node.store.learner import LearnerStore
store = LearnerStore(Path(sys.argv[1]))
for number in range(1, 100_000):
    store.add_outbox([(b"p" * 1000, 1)], round_number=number, created_at_ms=5, window=0, next_slot=number)
    print(number, flush=True)
"""


def test_what_was_acknowledged_before_sigkill_is_there(tmp_path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(50):
        acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split("\n")
    writer.stdout.close()
    writer.wait()
    acknowledged = max([acknowledged, *(int(line) for line in rest[:-1] if line)])
    learner = LearnerStore(tmp_path)
    assert learner.next_slot(0) >= acknowledged
    learner.close()


def columns(home: Path) -> dict[str, set[str]]:
    with sqlite3.connect(home / schema.STORE_FILE) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in tables}


@pytest.mark.parametrize("lost", ["", "score", "round_trip_ms", "ban_proof"])
def test_an_older_store_is_brought_up_to_date(tmp_path: Path, lost: str) -> None:
    """Also one from between two versions, whose number tells little of its columns (``lost``)."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    with sqlite3.connect(old / schema.STORE_FILE) as database:
        database.executescript(Path(__file__).with_name("schema_v1.sql").read_text())
        database.execute(
            "INSERT INTO peers (peer, first_contact_ms, last_contact_ms, score) VALUES (?, 1, 2, -5)", (BOB,)
        )
        item = batch(1)
        database.execute(
            "INSERT INTO received VALUES (?, ?, ?, 'here', 5, 6, 0, 1, 2, ?)", (item.name, ALICE, BOB, item.data)
        )
        database.execute("INSERT INTO inbox_groups VALUES (?, 0, ?, 2, 'ready', 1, NULL, 5)", (item.name, ALICE))
        database.execute("INSERT INTO outbox VALUES (7, 1, 5, 0, 1, 1, ?)", (b"own",))
        if lost:
            database.execute(f"ALTER TABLE peers DROP COLUMN {lost}")
    with pytest.raises(StoreError, match="brought up to date when a node starts"):
        StoreReader(old)
    store = NetworkStore(old)
    assert store.peers.score(BOB).value == (0 if lost == "score" else -5)
    assert [entry.payload for entry in store.unsigned(10)] == [b"own"]
    store.close()
    learner = LearnerStore(old)  # the second to open it finds it done
    (group,) = learner.inbox.ready(10)
    assert (group.reward, group.spread) == (None, None)
    learner.inbox.note_rewards(group.name, group.group_index, reward=0.5, spread=0.25)
    (group,) = learner.inbox.ready(10)
    assert (group.reward, group.spread) == (0.5, 0.25)
    learner.close()
    NetworkStore(new).close()
    assert columns(old) == columns(new)


def test_a_store_of_the_future_is_left_alone(tmp_path: Path) -> None:
    NetworkStore(tmp_path).close()
    with sqlite3.connect(tmp_path / schema.STORE_FILE) as database:
        database.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match="written by a newer version"):
        NetworkStore(tmp_path)


def test_authors_take_turns_in_being_looked_at_whatever_time_they_claim(sides, monkeypatch) -> None:
    """Mallory sends much and dates it into the future; Bob's one batch, which came before, is the second."""
    network, learner = sides
    times = iter(range(1_000, 2_000))
    monkeypatch.setattr("ftis_node.store.network.now_ms", lambda: next(times))
    accept(network, batch(1, author=BOB))
    for number in range(2, 7):
        accept(network, replace(batch(number), created_at_ms=now_ms() + 1_000 * (10 - number)))
    order = [int.from_bytes(row.name, "big") for row in learner.inbox.unchecked(10)]
    assert order == [6, 1, 5, 4, 3, 2]
    assert [row.author for row in learner.inbox.unchecked(2)] == [ALICE, BOB]
