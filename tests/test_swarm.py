"""Whole daemons as a swarm: relays, addresses passed on, bootstraps that go away, bans."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from ftis_node.identity import load_or_create_identity
from ftis_node.status.judgement import judge
from ftis_node.status.snapshot import NodeStatus
from tests.daemons import Daemon, processes, wait_for_unlocked, write_run

QUICK = (
    "training.groups_per_step=4",
    "training.min_own_share=0.5",
    "training.learning_rate=3e-4",
    "training.collect_timeout=5",
    "caps.range_share=1.0",
    "caps.newcomer_groups=0",
    "network.dial_backoff_max=2",
)


def connected_to(status: NodeStatus) -> set[str]:
    return {peer.peer_id for peer in status.peers if peer.connected}


def test_a_swarm_outlives_its_bootstrap_and_takes_a_node_back(tmp_path: Path) -> None:
    """Two nodes meet through a relay. The relay dies; they find each other, and one comes back without it."""
    run = write_run(tmp_path)
    relay = Daemon(tmp_path / "relay", run=run, sets=QUICK, command="relay")
    with relay:
        address = (relay.address(),)
        with (
            Daemon(tmp_path / "a", peers=address, sets=QUICK, command="relay") as a,
            Daemon(tmp_path / "b", peers=address, sets=QUICK) as b,
        ):
            id_a, id_b = (node.until(lambda s: bool(s.peer_id), "it has an id").peer_id for node in (a, b))
            a.until(lambda s: id_b in connected_to(s), "a and b are connected without the relay between them")
            assert relay.status().learner == "none: this is a relay"
            relay.kill()
            held = a.status().received_batches
            a.until(lambda s: s.received_batches > held, "b's batches reach a without the relay")
            assert b.terminate() == 0
            a.until(lambda s: id_b not in connected_to(s), "b has left")
            with Daemon(tmp_path / "b", sets=QUICK) as b_again:
                b_again.until(lambda s: id_a in connected_to(s), "b finds a again by what it remembers")
                assert b_again.status().peer_id == id_b
                assert b_again.terminate() == 0
            assert a.terminate() == 0


def test_a_relay_needs_no_torch(tmp_path: Path) -> None:
    """A machine without torch: importing it fails. The relay runs, and passes batches on."""
    run = write_run(tmp_path)
    trap = tmp_path / "trap"
    for name in ("torch", "transformers", "peft", "hivemind"):
        (trap / name).mkdir(parents=True)
        (trap / name / "__init__.py").write_text(f"raise ImportError('{name} is not installed here')\n")
    with Daemon(tmp_path / "relay", run=run, command="relay", env={"PYTHONPATH": str(trap)}) as relay:
        with Daemon(tmp_path / "node", peers=(relay.address(),), sets=QUICK) as node:
            relay.until(lambda s: s.received_batches > 0, "a batch arrives")
            status = relay.status()
            assert status.peers[0].model == "builtin:small"
            assert node.terminate() == 0
        relay.until(lambda s: not connected_to(s), "the goodbye is understood", seconds=10)
        assert "the peer left: stopping" in relay.log
        assert relay.terminate() == 0


def test_two_daemons_with_one_identity_are_told_by_both_and_by_third_parties(tmp_path: Path) -> None:
    """Somebody copies a home to a second machine and starts both."""
    run = write_run(tmp_path)
    (tmp_path / "original").mkdir()
    load_or_create_identity(tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    with Daemon(tmp_path / "relay", run=run, command="relay") as relay:
        address = (relay.address(),)
        with (
            Daemon(tmp_path / "original", peers=address, sets=QUICK) as original,
            Daemon(tmp_path / "copy", peers=address, sets=QUICK) as copy,
        ):
            for daemon in (original, copy):
                status = daemon.until(lambda s: s.twin_at_ms is not None, "it knows of the other")
                assert any("a second daemon runs with this node's identity" in r for r in judge(status).reasons)
            status = relay.until(lambda s: any(peer.twin_at_ms for peer in s.peers), "the relay knows")
            assert any("two daemons run with the identity of" in note for note in judge(status).notes)
            assert original.terminate() == 0
            assert copy.terminate() == 0
        assert relay.terminate() == 0


def test_another_identity_at_a_known_address_is_shown_by_health(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "first", run=run, command="relay") as first:
        address = first.address()
        with Daemon(tmp_path / "node", peers=(address,), sets=QUICK, command="relay") as node:
            node.until(lambda s: bool(connected_to(s)), "the first contact")
            assert first.terminate() == 0
            with Daemon(tmp_path / "impostor", run=run, command="relay", listen=address) as impostor:
                impostor.address()
                status = node.until(lambda s: any("answers instead of" in d.state for d in s.dials), "the alarm")
                assert not connected_to(status)
                assert impostor.terminate() == 0
            node.process.send_signal(signal.SIGTERM)
            assert node.process.wait(20) == 0


def p2pd_of(daemon: Daemon) -> set[int]:
    """Processes of the DHT that the daemon started: p2pd is its child."""

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

    return {process for process in processes("p2pd") if parent(process) == daemon.process.pid}


def alive(wanted: set[int]) -> set[int]:
    return wanted & set(processes("p2pd"))


@pytest.mark.slow
def test_daemons_meet_in_the_dht_and_leave_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL of a daemon ends its DHT process and its learner within 5 s."""
    run = write_run(tmp_path)
    with Daemon(tmp_path / "a", run=run, command="relay", dht=True) as a:
        address = (a.address(),)
        with Daemon(tmp_path / "b", peers=address, sets=QUICK, dht=True) as b:
            b.until(lambda s: s.dht == "on, 1 nodes known", "b knows a's DHT node")
            a.until(lambda s: s.dht == "on, 1 nodes known", "a knows b's DHT node")
            children = p2pd_of(b)
            assert children
            b.kill()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and alive(children):
                time.sleep(0.1)
            assert not alive(children)
            wait_for_unlocked(tmp_path / "b")
        children = p2pd_of(a)
        assert a.terminate() == 0
        assert not alive(children)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 4.0])
def test_ctrl_c_reaches_every_process_of_a_node_and_it_stops_in_order(tmp_path: Path, seconds: float) -> None:
    with Daemon(tmp_path / "node", run=write_run(tmp_path), dht=True) as node:
        node.address()
        time.sleep(seconds)
        os.killpg(node.process.pid, signal.SIGINT)
        assert node.process.wait(30) == 0
        lines = node.log.splitlines()
        assert lines[-1].endswith("stopped")
        assert not [line for line in lines if "ERROR" in line or "Traceback" in line or "killed" in line]
