"""Homes of the first published version go on under this one: same identity, weights, rounds and inbox.

``data/homes_v1.tar.xz`` holds two nodes of that version (one with full training, one with LoRA) that had trained
four rounds on each other's samples. Their keys were made for this and are used nowhere else.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest

from ftis_node.identity import load_or_create_identity
from ftis_node.store.reader import StoreReader
from tests.daemons import Daemon

HOMES = Path(__file__).parent / "data" / "homes_v1.tar.xz"


def unpack(folder: Path, name: str) -> Path:
    with tarfile.open(HOMES) as archive:
        # Filters came with Python 3.11.4, and later versions ask for one.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder / name


@pytest.mark.parametrize("name", ["full", "lora"])
def test_a_home_of_the_first_version_goes_on(name: str, tmp_path: Path) -> None:
    home = unpack(tmp_path, name)
    identity = load_or_create_identity(home).peer_id
    with sqlite3.connect(home / "store.sqlite3") as before:
        published = {row[0] for row in before.execute("SELECT name FROM published")}
        epoch = before.execute("SELECT max(epoch) FROM published").fetchone()[0]
    sets = ("training.max_rounds=6", "training.collect_timeout=0.5")
    with Daemon(home, sets=sets) as node:
        status = node.finished()
        assert node.terminate() == 0
    assert "resumed after round 4" in node.log
    assert status.peer_id == identity.hex()
    assert status.last_round is not None
    assert status.last_round.round == 6
    assert status.last_round.totals.steps + status.last_round.totals.skipped_steps == 6
    with StoreReader(home) as store:
        assert [report.round for report in store.rounds()] == [1, 2, 3, 4, 5, 6]
    with sqlite3.connect(home / "store.sqlite3") as after:
        newer = {row[0]: row[1] for row in after.execute("SELECT name, epoch FROM published")}
        assert after.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert published
    assert all(number > epoch for batch, number in newer.items() if batch not in published)
