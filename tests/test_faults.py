"""What a machine does to a node: each fault is named by ``health`` within ten seconds, loses nothing, and passes.

The learner that is killed is in test_daemon.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node.identity import load_or_create_identity
from tests.daemons import Daemon, wait_for_unlocked, write_run
from tests.failing_disk import failing_disk
from tests.netlab.hosts import Host, lab

pytestmark = pytest.mark.slow

PORT = 47100
NAMED_SECONDS = 10.0
FAST = ("training.groups_per_step=4", "training.collect_timeout=2", "caps.newcomer_share=1.0", "status.address='off'")


def health(home: Path, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None) -> str:
    """What an operator on that machine reads."""
    line = [*prefix, sys.executable, "-m", "ftis_node", "health", "--home", str(home)]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )
    return done.stdout + done.stderr


def until_named(text: str, home: Path, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None) -> None:
    deadline = time.monotonic() + NAMED_SECONDS
    said = ""
    while time.monotonic() < deadline:
        said = health(home, prefix, env)
        if text in said:
            return
        time.sleep(0.2)
    pytest.fail(f"health did not say {text!r} within {NAMED_SECONDS:.0f} s:\n{said}")


def until_logged(text: str, node: Daemon) -> None:
    """``health`` looks at the home itself, and may see before the node does."""
    deadline = time.monotonic() + NAMED_SECONDS
    while text not in node.log:
        if time.monotonic() > deadline:
            pytest.fail(f"the log did not say {text!r} within {NAMED_SECONDS:.0f} s:\n{node.log[-2000:]}")
        time.sleep(0.1)


def last_round(home: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{home}/store.sqlite3?mode=ro", uri=True)) as store:
        return int(store.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()[0])


def published_of(home: Path) -> set[bytes]:
    with contextlib.closing(sqlite3.connect(f"file:{home}/store.sqlite3?mode=ro", uri=True)) as store:
        return {row[0] for row in store.execute("SELECT name FROM published")}


def goes_on(node: Daemon, rounds: int = 3) -> None:
    """It trains again, and everything that it had is still there."""
    node.after_round(last_round(node.home) + rounds)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED HERE, a full disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    junk = disk / "junk"
    with junk.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return junk


def test_a_full_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with (
        small_disk(tmp_path / "disk", "24m") as disk,
        Daemon(disk / "node", run=run, sets=FAST) as node,
        Daemon(tmp_path / "peer", peers=(node.address(),), sets=FAST) as peer,
    ):
        node.until(lambda s: any(p.trained for p in s.peers), "it trains on the peer's samples")
        before, identity = published_of(node.home), load_or_create_identity(node.home).peer_id
        junk = fill(disk)
        until_named("the disk of the home is full", node.home)
        reached = last_round(peer.home)
        peer.after_round(reached + 2)  # the peer isn't held up
        junk.unlink()
        goes_on(node)
        assert before <= published_of(node.home)
        assert load_or_create_identity(node.home).peer_id == identity
        status = peer.status()
        assert not [r for r in status.rejections if r.reason != "held_out"]
        assert node.terminate() == 0
        with contextlib.closing(sqlite3.connect(node.home / "store.sqlite3")) as store:
            assert store.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            rounds = [row[0] for row in store.execute("SELECT round FROM rounds ORDER BY round")]
        assert rounds == list(range(1, len(rounds) + 1))


def test_a_node_stops_in_order_on_a_full_disk(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with small_disk(tmp_path / "disk", "24m") as disk, Daemon(disk / "node", run=run, sets=FAST) as node:
        node.after_round(2)
        fill(disk)
        until_named("the disk of the home is full", node.home)
        assert node.terminate() == 0


@contextlib.contextmanager
def frozen(home: Path) -> Iterator[None]:
    """Nothing in the home can be changed, not even by root or through a file that is open.

    It becomes so between two transactions. In the middle of one, ``chattr`` would do what no disk does: let the WAL be
    written and refuse its index. A disk that fails at any moment is in the last test of this kind.
    """
    with contextlib.closing(sqlite3.connect(home / "store.sqlite3", timeout=20, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        made = subprocess.run(["chattr", "-R", "+i", str(home)], capture_output=True, text=True, check=False)
    try:
        if made.returncode != 0:
            pytest.skip(f"NOT TESTED HERE, a home that becomes read-only: {made.stderr.strip().splitlines()[0]}")
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", str(home)], check=False)


def test_a_home_that_becomes_read_only(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "node", run=run, sets=FAST) as node:
        node.after_round(3)
        before = published_of(node.home)
        with frozen(node.home):
            until_named("the home is read-only", node.home)
            os.sync()  # from here on a write to memory that is mapped from a file is answered with SIGBUS
            time.sleep(3)
            assert node.process.poll() is None
        goes_on(node)
        assert before <= published_of(node.home)
        assert node.terminate() == 0


def test_a_node_stops_in_order_in_a_read_only_home(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "node", run=run, sets=FAST) as node:
        node.after_round(2)
        before = published_of(node.home)
        with frozen(node.home):
            until_named("the home is read-only", node.home)
            os.sync()
            time.sleep(1)
            assert node.terminate() == 0
            wait_for_unlocked(node.home)
        with Daemon(node.home, sets=FAST) as again:
            goes_on(again)
        assert before <= published_of(node.home)


def test_a_disk_that_fails_under_a_node(tmp_path: Path) -> None:
    """Its system lets nobody write to it any more, and says all the same that it could be written."""
    run = write_run(tmp_path)
    (tmp_path / "node.log").touch()
    with failing_disk(tmp_path / "disk", 300) as disk:
        (disk.folder / "node.log").symlink_to(tmp_path / "node.log")  # it says what it does somewhere else
        with Daemon(disk.folder / "node", run=run, sets=FAST) as node:
            node.after_round(2)
            before, identity = published_of(node.home), load_or_create_identity(node.home).peer_id
            disk.fail()
            until_named("the home is read-only", node.home)
            until_logged("the home can't be written", node)
            time.sleep(3)
            assert node.process.poll() is None
            assert node.terminate() == 0
            wait_for_unlocked(node.home)
        disk.repair()
        with Daemon(disk.folder / "node", sets=FAST) as again:
            goes_on(again)
            assert before <= published_of(again.home)
            assert load_or_create_identity(again.home).peer_id == identity
            assert again.terminate() == 0


def test_a_home_that_is_deleted_ends_the_node_in_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "node", run=run, sets=FAST) as node:
        node.after_round(1)
        shutil.rmtree(node.home, ignore_errors=True)
        assert node.process.wait(60) == 1
        ended = node.log.splitlines()[-1]
    assert ended.startswith("ftis-node: ")
    assert "was deleted or replaced while the node ran" in ended


def test_a_home_on_a_read_only_disk_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "node", run=run, sets=FAST) as node:
        node.after_round(1)
        assert node.terminate() == 0
    wait_for_unlocked(tmp_path / "node")
    with frozen(tmp_path / "node"), Daemon(tmp_path / "node", sets=FAST) as node:
        assert node.process.wait(60) == 1
        ended = node.log.splitlines()[-1]
    assert ended.startswith("ftis-node: ")
    assert "Traceback" not in node.log
    assert "can't be" in ended
    assert "node" in ended


def start_pair(tmp_path: Path, a: Host, b: Host) -> tuple[Daemon, Daemon]:
    run = write_run(tmp_path)
    first = Daemon(tmp_path / "a", run=run, sets=FAST, listen=f"0.0.0.0:{PORT}", prefix=a.prefix)
    first.address()
    second = Daemon(
        tmp_path / "b", peers=(f"{a.address}:{PORT}",), sets=FAST, listen=f"0.0.0.0:{PORT}", prefix=b.prefix
    )
    return first, second


@pytest.mark.parametrize("way", ["the link is down", "packets are dropped"])
def test_the_network_goes_and_comes_back(way: str, tmp_path: Path) -> None:
    with lab() as machines:
        a, b = machines.host(), machines.host()
        first, second = start_pair(tmp_path, a, b)
        with first, second:
            second.until(lambda s: any(p.connected and p.trained for p in s.peers), "they learn from each other")
            if way == "the link is down":
                b.run("ip", "link", "set", "up0", "down")
                until_named("this machine has no network", second.home, b.prefix)
            else:
                b.cut_off([a])
                a.cut_off([b])
                until_named("nothing has come from any neighbour for", second.home, b.prefix)
            meanwhile = last_round(second.home)
            second.after_round(meanwhile + 2)  # alone
            made = published_of(second.home)
            if way == "the link is down":
                b.run("ip", "link", "set", "up0", "up")
                b.run("ip", "route", "replace", "default", "dev", "up0")
            else:
                a.restore()
                b.restore()
            second.until(lambda s: any(p.connected for p in s.peers), "they are connected again")
            first.until(lambda s: made <= received_by(first.home), "what was made alone has arrived")
            assert first.terminate() == 0
            assert second.terminate() == 0


def received_by(home: Path) -> set[bytes]:
    with contextlib.closing(sqlite3.connect(f"file:{home}/store.sqlite3?mode=ro", uri=True)) as store:
        return {row[0] for row in store.execute("SELECT name FROM seen")}


def test_the_clock_is_set_back_and_put_right(tmp_path: Path) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("NOT TESTED HERE, a clock that is set: apt-get install faketime")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    env = {
        "LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    with Daemon(tmp_path / "node", run=write_run(tmp_path), sets=FAST, env=env) as node:
        node.after_round(3)
        before = published_of(node.home)
        clock.write_text("-3600")
        until_named("clock was set back", node.home, env=env)
        reached = last_round(node.home)
        clock.write_text("+0")
        node.after_round(max(reached, last_round(node.home)) + 3)
        assert before <= published_of(node.home)
        assert node.terminate() == 0
    with contextlib.closing(sqlite3.connect(node.home / "store.sqlite3")) as store:
        signed = store.execute("SELECT count(*), count(DISTINCT epoch || '-' || sequence) FROM published").fetchone()
    assert signed[0] == signed[1]
