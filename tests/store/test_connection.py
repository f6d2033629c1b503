"""Transactions that something cuts off, on the connections that both sides use. A disk that becomes read-only under a
whole node is in tests/test_faults.py."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from ftis_node.errors import StoreError
from ftis_node.status.snapshot import read_status
from ftis_node.store.faults import storage_fault
from ftis_node.store.network import NetworkStore
from ftis_node.store.schema import STORE_FILE, open_database, transaction


def values(home: Path) -> list[str]:
    database = open_database(home, durable=True)
    found = [row[0] for row in database.execute("SELECT key FROM network_state ORDER BY key")]
    database.close()
    return found


def test_a_transaction_that_a_stop_cut_off_is_undone_by_the_next(tmp_path: Path) -> None:
    database = open_database(tmp_path, durable=True)
    database.execute("BEGIN IMMEDIATE")  # the signal came before anything could undo it
    database.execute("INSERT INTO network_state VALUES ('half', x'00')")
    with transaction(database):
        database.execute("INSERT INTO network_state VALUES ('whole', x'00')")
    database.close()
    assert values(tmp_path) == ["whole"]


def test_a_file_that_may_not_be_written_refuses_the_statement_and_not_the_process(tmp_path: Path) -> None:
    database = open_database(tmp_path, durable=True)
    index = tmp_path / "store.sqlite3-shm"
    made = subprocess.run(["chattr", "+i", str(index)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"NOT TESTED HERE, a file that may not be written: {made.stderr.strip()}")
    try:
        for statement in ("BEGIN IMMEDIATE", "DELETE FROM network_state", "COMMIT"):
            with pytest.raises(OSError, match="Read-only") as caught:
                database.execute(statement)
            assert storage_fault(caught.value) == "it is read-only"
        assert database.execute("SELECT count(*) FROM network_state").fetchone() == (0,)
    finally:
        subprocess.run(["chattr", "-i", str(index)], check=True)
    with transaction(database):
        database.execute("INSERT INTO network_state VALUES ('later', x'00')")
    database.close()
    assert values(tmp_path) == ["later"]


def test_a_refused_file_is_a_fault_of_the_home_and_a_refused_socket_is_not() -> None:
    refused = PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/home/node/checkpoints")
    assert storage_fault(refused) == "/home/node/checkpoints: Operation not permitted"
    assert storage_fault(PermissionError(errno.EACCES, os.strerror(errno.EACCES))) is None


@pytest.mark.parametrize("value", [b"\xff", b"{}", b"[1]", b"{"])
def test_a_row_that_a_failing_disk_has_changed_is_one_line(tmp_path: Path, value: bytes) -> None:
    """SQLite has no checksums: what it reads back may be anything."""
    NetworkStore(tmp_path).close()
    database = open_database(tmp_path, durable=True)
    database.execute("INSERT INTO learner_state VALUES ('activity', ?)", (value,))
    database.close()
    with pytest.raises(StoreError, match="the store is damaged"):
        read_status(tmp_path)


def test_a_store_with_a_page_that_a_failing_disk_has_changed_ends_the_node_with_one_line(tmp_path: Path) -> None:
    NetworkStore(tmp_path).close()
    path = tmp_path / STORE_FILE
    sound = path.read_bytes()
    lines = set()
    for page in range(1, len(sound) // 4096):
        path.write_bytes(sound[: page * 4096] + os.urandom(4096) + sound[(page + 1) * 4096 :])
        try:
            store = NetworkStore(tmp_path)
            try:
                for key in ("peer_id", "manifest"):
                    store.put(key, b"x" * 32)
                store.peers.all_disconnected()
            finally:
                store.close()
        except StoreError as error:
            lines.add(str(error))
    assert lines
    assert all(line.startswith(f"{path}: ") for line in lines)


def test_an_index_that_has_just_been_made_is_no_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that come and go delete it and make it while the store is opened."""
    database = open_database(tmp_path, durable=True)
    made = tmp_path / "made-shm"
    database.index_file = made  # type: ignore[attr-defined]
    access = os.access

    def made_right_afterwards(path: Path, mode: int) -> bool:
        found = access(path, mode)
        made.touch()
        return found

    monkeypatch.setattr(os, "access", made_right_afterwards)
    database.execute("DELETE FROM network_state")
    database.close()
