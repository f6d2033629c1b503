"""``ftis-node doctor`` as a user meets it, beside real nodes."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftis_node.clock import now_ms
from ftis_node.doctor import findings as checks
from ftis_node.identity import KEY_FILE, load_or_create_identity
from ftis_node.manifest import load_run
from ftis_node.store.network import NetworkStore
from tests.daemons import Daemon, write_run
from tests.netlab.hosts import lab
from tests.test_cli import ftis_node

ORDER = [
    check.name
    for check in (
        checks.PYTHON, checks.PACKAGES, checks.DEVICE, checks.HOME, checks.IDENTITY, checks.STORE, checks.PEERS,
        checks.RUN, checks.CLOCK, checks.PORT, checks.REACH, checks.DHT, *checks.MODEL_CHECKS,
    )
]  # fmt: skip
LISTEN = ("--listen", "127.0.0.1:0")
PORT = 47100


def doctor(
    home: Path, *arguments: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings of ``--json`` by check."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "ftis_node", "doctor", "--home", str(home), "--json", *arguments],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema_version"] == 1
    assert [finding["check"] for finding in answer["findings"]] == ORDER
    for finding in answer["findings"]:
        assert set(finding) == {"check", "level", "found", "advice", "seconds"}
        assert finding["level"] in ("ok", "warning", "failure")
    return done.returncode, {finding["check"]: finding for finding in answer["findings"]}


def levels(found: dict[str, dict[str, Any]], level: str) -> set[str]:
    return {name for name, finding in found.items() if finding["level"] == level}


def contents(home: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file but SQLite's index of its log, which readers share."""
    return {
        str(path): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in home.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_a_healthy_home_beside_a_peer(tmp_path: Path) -> None:
    """With the DHT, over real connections; nothing of the home is changed, and none is made."""
    with Daemon(tmp_path / "peer", run=write_run(tmp_path), command="relay", dht=True) as peer:
        address = peer.address()
        peer.until(lambda s: s.dht.startswith("on"), "its DHT node runs")
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        load_or_create_identity(home)
        NetworkStore(home).close()
        before = contents(home)
        code, found = doctor(home, *LISTEN, "--peers", address)
        assert (code, levels(found, "ok")) == (0, set(ORDER)), found
        assert contents(home) == before
        assert address in found["peers"]["found"]
        assert f"from {address}" in found["run"]["found"]
        assert f"{address} dials this machine at 127.0.0.1:" in found["reach"]["found"]
        assert found["dht"]["found"] == "joined, 1 nodes known"
        assert "8 of 8 texts come back" in found["tokenizer"]["found"]
        assert found["step"]["seconds"] < 60
        assert peer.terminate() == 0


def test_alone_and_new_it_warns_of_what_it_can_not_check(tmp_path: Path) -> None:
    done = ftis_node("doctor", "--home", str(tmp_path / "home"), *LISTEN, "--no-dht")
    assert done.returncode == 0, done.stdout
    assert "the checks below use builtin:addition" in done.stdout
    assert "warning  clock       can't be checked without a peer" in done.stdout
    assert "ok       step        " in done.stdout
    assert "15 ok, 4 warning, 0 failure" in done.stdout.splitlines()[-1]
    assert not (tmp_path / "home").exists()


def test_much_that_is_broken_at_once(tmp_path: Path) -> None:
    """A key that others can read, a port that is taken, a peer that is gone, a model that isn't there."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    load_or_create_identity(home)
    (home / KEY_FILE).chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, found = doctor(
            home, "--listen", listen, "--no-dht", "--peers", "127.0.0.1:9", "--model", "builtin:huge",
            "--run", "builtin:addition", "--set", "ceilings.completion_tokens=8",
        )  # fmt: skip
    assert code == 1
    assert levels(found, "failure") == {"identity", "peers", "run", "port", "model"}, found
    assert found["identity"]["advice"] == f"chmod 600 {home / KEY_FILE}"
    assert "127.0.0.1:9: can't be reached" in found["peers"]["found"]
    assert f"{listen}: can't listen there: Address already in use" in found["port"]["found"]
    assert "there is no such built-in model" in found["model"]["found"]
    assert "not checked, because there is no model" in found["tokenizer"]["found"]
    assert "not checked" in found["step"]["found"]
    assert "above this node's ceiling of 8" in found["run"]["found"]


def test_a_disk_that_is_too_small_for_the_configuration(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "home", *LISTEN, "--no-dht", "--set", "ceilings.store_megabytes=900000000")
    assert code == 0
    assert found["disk"]["level"] == "warning"
    assert "lower --set ceilings.store_megabytes" in found["disk"]["advice"]


@pytest.mark.slow
def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("NOT TESTED HERE, a wrong clock: apt-get install faketime")
    late = {"LD_PRELOAD": str(library), "FAKETIME": "-300", "DONT_FAKE_MONOTONIC": "1"}
    run = write_run(tmp_path)
    with Daemon(tmp_path / "peer", run=run, command="relay") as peer:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        store = NetworkStore(home)
        store.put("manifest", load_run(run).data)
        store.peers.dial_state("10.0.0.1:1", "can't be reached", None, None)  # written by the right time
        store.close()
        code, found = doctor(tmp_path / "new", *LISTEN, "--no-dht", "--peers", peer.address(), env=late)
        assert code == 1
        assert levels(found, "failure") == {"clock"}, found
        assert found["clock"]["found"].startswith("300.")
        assert "s behind a peer's; the run allows 30 s" in found["clock"]["found"]
        _, found = doctor(home, *LISTEN, "--no-dht", env=late)
        assert "before this node's own last entry in its store" in found["clock"]["found"]
        assert peer.terminate() == 0


def test_a_machine_behind_a_nat_and_one_that_is_reached(tmp_path: Path) -> None:
    """On machines of their own: what a peer sees of a machine at home is its router's address."""
    with lab() as machines:
        public, other, at_home = machines.host(), machines.host(), machines.host_behind_nat()
        run, listen = write_run(tmp_path), f"0.0.0.0:{PORT}"
        with Daemon(tmp_path / "peer", run=run, command="relay", listen=listen, prefix=public.prefix) as peer:
            peer.address()
            arguments = ("--no-dht", "--model", "builtin:huge", "--peers", f"{public.address}:{PORT}")
            _, found = doctor(tmp_path / "other", *arguments, prefix=other.prefix)
            assert found["reach"]["level"] == "ok", found
            assert f"dials this machine at {other.address}:{PORT}" in found["reach"]["found"]
            _, found = doctor(tmp_path / "home", *arguments, prefix=at_home.prefix)
            assert (found["peers"]["level"], found["reach"]["level"]) == ("ok", "warning"), found
            assert at_home.address not in found["reach"]["found"]
            assert "behind a NAT or firewall this is normal" in found["reach"]["found"]
            assert f"forward TCP port {PORT}" in found["reach"]["advice"]
            assert peer.terminate() == 0


def test_a_run_that_is_not_for_this_node(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    run.write_text(run.read_text().replace('membership = "open"', f'membership = {{ peers = ["{"ab" * 32}"] }}'))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    identity = load_or_create_identity(home).peer_id
    arguments = (*LISTEN, "--no-dht", "--model", "builtin:huge", "--run", str(run))
    _, found = doctor(home, *arguments)
    assert found["run"]["level"] == "failure"
    assert "for a list of peers, and you are not on it" in found["run"]["found"]
    assert found["run"]["advice"] == f"this node is {identity.hex()}"
    _, found = doctor(tmp_path / "new", *arguments)
    assert found["run"]["level"] == "warning"
    assert "no identity to be admitted yet" in found["run"]["found"]


def test_a_home_that_another_daemon_has_a_copy_of(tmp_path: Path) -> None:
    with Daemon(tmp_path / "one", run=write_run(tmp_path), command="relay") as one:
        address = one.address()
        home = tmp_path / "copy"
        home.mkdir(mode=0o700)
        shutil.copy(tmp_path / "one" / KEY_FILE, home)
        code, found = doctor(home, *LISTEN, "--no-dht", "--peers", address, "--model", "builtin:huge")
        assert code == 1
        assert "another daemon runs with it" in found["peers"]["found"]
        assert one.terminate() == 0


def test_a_running_daemon_is_not_disturbed(tmp_path: Path) -> None:
    sets = ("training.groups_per_step=2", "training.min_own_share=1.0")
    run = write_run(tmp_path)
    with Daemon(tmp_path / "peer", run=run, command="relay") as peer:
        with Daemon(tmp_path / "node", run=run, peers=(peer.address(),), sets=sets) as node:
            node.until(lambda s: s.last_round is not None and any(p.connected for p in s.peers), "it trains")
            process = node.process.pid
            code, found = doctor(tmp_path / "node")  # node.toml says what is needed
            assert (code, levels(found, "failure")) == (0, set()), found
            for check in ("device", "model", "completion", "step"):
                assert f"left out, because the daemon (process {process}) runs" in found[check]["found"]
                assert found[check]["seconds"] == 0, "nothing was loaded"
            assert "is held by this home's own daemon" in found["port"]["found"]
            assert "dials this machine at 127.0.0.1:" in found["reach"]["found"]
            assert found["clock"]["level"] == "ok"
            rounds = node.status().round
            node.after_round(rounds + 2)
            assert node.status().learner == "running"
            assert node.terminate() == 0
        assert peer.terminate() == 0


def test_a_known_peer_of_a_home_is_asked_without_being_named(tmp_path: Path) -> None:
    with Daemon(tmp_path / "peer", run=write_run(tmp_path), command="relay") as peer:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        store = NetworkStore(home)
        address = peer.address()
        identity = load_or_create_identity(tmp_path / "peer").peer_id
        store.peers.address_reached(identity, address)
        store.close()
        _, found = doctor(home, *LISTEN, "--no-dht", "--model", "builtin:huge")
        assert found["peers"]["level"] == "ok"
        assert identity.hex()[:12] in found["peers"]["found"]
        assert found["reach"]["level"] == "ok"
        assert peer.terminate() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.groupsize=3"], "training.groupsize"),
        (["--peers", "nowhere"], "--peers: 'nowhere' is not an address"),
        (["--listen", "nowhere"], "network.listen: 'nowhere' is not an address"),
        (["--config", "/nowhere/node.toml"], "/nowhere/node.toml: can't be read"),
        (["--run", "builtin:poetry"], "allowed are builtin:addition, or a file"),
        (["--run", "/nowhere/run.toml"], "/nowhere/run.toml: can't be read"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = ftis_node("doctor", "--home", str(tmp_path / "home"), *arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not (tmp_path / "home").exists()


def test_the_store_tells_the_newest_time_in_it(tmp_path: Path) -> None:
    from ftis_node.store.reader import StoreReader

    store = NetworkStore(tmp_path)
    with StoreReader(tmp_path) as reader:
        assert reader.newest_ms() is None
    before = now_ms()
    store.peers.dial_state("10.0.0.1:1", "can't be reached", None, None)
    store.close()
    with StoreReader(tmp_path) as reader:
        newest = reader.newest_ms()
    assert newest is not None
    assert before <= newest <= now_ms()
