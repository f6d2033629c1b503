"""What is wrong with the machine under a home, found by looking at it."""

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftis_node.doctor.machine import home_folder
from ftis_node.status import home_faults
from ftis_node.status.home_faults import clock_faults, disk_faults, network_faults
from ftis_node.store.process_states import ProcessState
from tests.failing_disk import failing_disk


def statvfs(free: int, flags: int = 0) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 10**6, free // 4096, free // 4096, 0, 0, 0, flags, 255))


def test_a_full_disk_a_nearly_full_one_and_one_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disk_faults(tmp_path) == ()
    checkpoint = tmp_path / "checkpoints" / "round-00000007" / "model"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"x" * 10_000_000)
    for free, flags, expected in (
        (100_000_000, 0, None),
        (9_000_000, 0, "nearly full: 9 MiB are left, a checkpoint takes 10"),
        (100_000, 0, "the disk of the home is full: 0.1 MiB are left"),
        (100_000_000, os.ST_RDONLY, "the home is read-only"),
    ):
        monkeypatch.setattr(os, "statvfs", lambda _, f=free, g=flags: statvfs(f, g))
        faults = disk_faults(tmp_path)
        assert (expected is None and faults == ()) or (expected is not None and expected in faults[0])


def test_a_disk_that_its_system_has_given_up_is_read_only_whatever_it_says(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "disk", 16) as disk:
        home = disk.folder / "home"
        home.mkdir(mode=0o700)
        assert disk_faults(home) == ()
        assert list(home.iterdir()) == []  # to try leaves nothing behind
        assert home_folder(home).level == "ok"
        disk.fail()
        assert disk_faults(home) == ("the home is read-only: neither the store nor checkpoints can be written",)
        assert home_folder(home).level == "failure"
        assert "Read-only file system" in home_folder(home).found


def test_a_home_that_is_gone(tmp_path: Path) -> None:
    assert disk_faults(tmp_path / "nowhere") == ("the home can't be looked at: No such file or directory",)


def test_a_clock_that_was_set_back_is_told_by_what_was_written_before() -> None:
    assert clock_faults(1_000_000, [999_000, 1_004_000]) == ()
    (fault,) = clock_faults(1_000_000, [0, 4_600_000])
    assert "this machine's clock was set back: the store was written 3,600 s in the future" in fault
    assert clock_faults(1_000_000, []) == ()
    step = ProcessState("3600", since_ms=999_000)
    assert "was set back by 3600 s" in clock_faults(1_000_000, [], step)[0]
    assert clock_faults(2_000_000, [], step) == ()


def test_a_clock_that_was_a_year_ahead_once_is_not_told_for_a_year() -> None:
    now, ahead = 2_000_000_000_000, [2_031_536_000_000]
    assert clock_faults(now, ahead, steady_since_ms=now - home_faults.CLOCK_SAID_MS) == ()
    assert clock_faults(now, ahead, steady_since_ms=now - 1000), "just started: it may be now that it is wrong"
    assert clock_faults(now, ahead, steady_since_ms=ahead[0]), "set back under the running daemon"
    assert clock_faults(now, ahead), "no daemon runs"


def test_a_machine_without_a_route_to_any_peer_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = ["ab" * 32 + "@192.0.2.1:47100", "[2001:db8::1]:47100", "127.0.0.1:1", "name:1", "192.0.2.9:1"]
    asked: list[str] = []

    def no_route(host: object) -> bool:
        asked.append(str(host))
        return False

    monkeypatch.setattr(home_faults, "_has_link", lambda: True)
    monkeypatch.setattr(home_faults, "_has_route", no_route)
    assert network_faults(targets) == ("this machine has no network: there is no route to any of 3 known peers",)
    assert asked == ["192.0.2.1", "2001:db8::1", "192.0.2.9"]
    monkeypatch.setattr(home_faults, "_has_route", lambda _: True)
    assert network_faults(targets) == ()
    monkeypatch.setattr(home_faults, "_has_link", lambda: False)
    assert network_faults(targets) == ("this machine has no network: no interface is up and connected",)
    assert network_faults(["127.0.0.1:1", "name:1"]) == ()


def test_a_process_in_a_network_namespace_of_its_own_has_no_link() -> None:
    look = "from ftis_node.status.home_faults import _has_link; print(_has_link())"
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", look], capture_output=True, text=True, check=False)
    if done.returncode == 1 and "unshare failed" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    assert done.stdout == "False\n", done.stderr


def test_loopback_has_a_route() -> None:
    assert home_faults._has_route(ipaddress.ip_address("127.0.0.1"))
