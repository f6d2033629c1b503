"""Health: what is read from a store, what is thought of it, and what a hostile peer's answer can do."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from ftis_node.commands.health import HealthOptions, run_health
from ftis_node.errors import StoreError
from ftis_node.identity import lock_home
from ftis_node.status.agreement import Agreement
from ftis_node.status.judgement import Judgement, Level, judge, reach
from ftis_node.status.rendering import print_health
from ftis_node.status.snapshot import DialStatus, NodeStatus, read_status
from ftis_node.status.summary import Answer, health_document
from ftis_node.store.authors import OWN, AuthorRound
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore
from ftis_node.store.reports import RoundReport
from ftis_node.store.schema import STORE_FILE
from ftis_node.types import LocalProfile, PeerId
from tests.builders import RUN

PEER = PeerId(b"p" * 32)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home as a daemon in its second round leaves it."""
    network, learner = NetworkStore(tmp_path), LearnerStore(tmp_path)
    network.put("peer_id", PEER)
    network.put("manifest", RUN.data)
    network.put("learner", b"%d running" % os.getpid())
    network.put("listening", b"%d 127.0.0.1:47100" % os.getpid())
    network.peers.connected(
        PEER, address="h:1", direction="out", model="m", version="1", tokenizer_fingerprint=b"t" * 32
    )
    learner.put_profile(LocalProfile(b"f" * 32, 258), model="builtin:small", parameters=10, trainable=5)
    learner.put_activity("waiting for 2 peers' groups", round_number=2, until_ms=None)
    report = RoundReport(round=1, own_groups=2, peer_groups=1, stepped=True, own_reward=0.5)
    used = AuthorRound(PEER, sequences=8, trained=5, filtered=2, zero_advantage=1, agreement=0.25, weight=0.5)
    learner.finish_round(1, [], report, [AuthorRound(OWN, sequences=16, trained=16), used], forget_before_ms=0)
    network.close()
    learner.close()
    return tmp_path


def test_all_that_is_shown_comes_from_the_store(home: Path) -> None:
    with lock_home(home):
        status = read_status(home)
    assert (status.round, status.activity) == (2, "waiting for 2 peers' groups")
    assert status.run_id == RUN.run_id.hex()
    assert (status.model, status.parameters, status.trainable_parameters) == ("builtin:small", 10, 5)
    assert status.last_round is not None
    assert status.last_round.own_reward == 0.5
    peer = status.peers[0]
    assert (peer.sequences, peer.trained, peer.filtered, peer.zero_advantage) == (8, 5, 2, 1)
    assert peer.agreement == Agreement(measured=1, mean=0.25)
    assert peer.weight == 0.5
    assert status.own_agreement.verdict == "unknown"
    assert status.peers[0].connected
    assert status.listening == "127.0.0.1:47100"
    assert judge(status) == Judgement(Level.HEALTHY)


def test_states_of_an_earlier_daemon_are_not_those_of_this_one(home: Path) -> None:
    """After SIGKILL the store still says "finished": the next daemon must not look finished while it starts."""
    network = NetworkStore(home)
    network.put("learner", b"1 finished")
    network.put("listening", b"1 127.0.0.1:47100")
    network.close()
    with lock_home(home):
        status = read_status(home)
    assert (status.learner, status.listening) == ("starting", None)
    assert judge(status).level is Level.DEGRADED


def test_without_a_daemon_the_state_is_shown_and_the_level_says_so(home: Path) -> None:
    status = read_status(home)
    assert not status.daemon_running
    assert status.listening is None
    assert judge(status).level is Level.UNREACHABLE


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store here"):
        read_status(tmp_path)


def test_a_damaged_store_is_one_line_and_unreachable(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / STORE_FILE
    data = bytearray(path.read_bytes())
    for position in range(4096, len(data), 64):
        data[position] ^= 0xFF
    path.write_bytes(bytes(data))
    for leftover in home.glob(STORE_FILE + "-*"):
        leftover.unlink()
    assert run_health(HealthOptions(home)) == 2
    assert "can't be read" in capsys.readouterr().out


def test_a_home_on_a_disk_that_can_not_be_written_is_still_read(home: Path) -> None:
    """Its last process was killed: what it wrote last lies in a log that can't be indexed there."""
    write = "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('DELETE FROM dials'); os._exit(0)"
    subprocess.run([sys.executable, "-c", write, str(home / STORE_FILE)], check=True)
    (home / f"{STORE_FILE}-shm").unlink()
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -m ftis_node health --home "$1"'
    line = ["unshare", "--mount", "sh", "-c", script, "sh", str(home), sys.executable]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 2
    assert "the home is read-only: neither the store nor checkpoints can be written" in done.stdout
    assert "builtin:small" in done.stdout


def test_a_store_that_is_being_made(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).touch()
    with pytest.raises(StoreError, match="is being made"):
        read_status(tmp_path)


def running(home: Path, **changes: object) -> NodeStatus:
    return read_status(home).model_copy(update={"daemon_running": True, "learner": "running", **changes})


def test_every_trouble_has_a_reason(home: Path) -> None:
    dial = DialStatus(address="h:1", state="does not answer", since_ms=0, retry_at_ms=None)
    skipped = RoundReport(round=1, own_groups=1, peer_groups=0, stepped=False, skipped_reason="log-probs not finite")
    alike = skipped.model_copy(update={"skipped_reason": "no sequence has an advantage"})
    cases: list[tuple[dict[str, object], str]] = [
        ({"learner": "died (exit code 1), restarting in 2 s"}, "learner: died"),
        ({"dials": (dial,), "peers": ()}, "no peer is connected"),
        ({"last_round": skipped}, "took no step: log-probs not finite"),
        (
            {"last_round": alike, "skipped_lately": 3, "rounds_lately": 6},
            "3 of the last 6 rounds took no step; round 1",
        ),
        ({"inbox": {"quarantined": 2}}, "2 groups are quarantined"),
    ]
    for changes, expected in cases:
        judgement = judge(running(home, **changes))
        assert judgement.level is Level.DEGRADED
        assert any(expected in reason for reason in judgement.reasons), judgement


def test_a_round_without_advantage_is_no_trouble(home: Path) -> None:
    reason = "no sequence has an advantage"
    alike = RoundReport(round=9, own_groups=1, peer_groups=0, stepped=False, skipped_reason=reason)
    for skipped, rounds in ((1, 1), (2, 2), (3, 20)):
        changes: dict[str, object] = {"last_round": alike, "skipped_lately": skipped, "rounds_lately": rounds}
        assert judge(running(home, **changes)).level is Level.HEALTHY


def test_a_node_that_is_alone_says_why(home: Path) -> None:
    def alone(*states: str) -> str:
        dials = [DialStatus(address=f"h:{i}", state=s, since_ms=0, retry_at_ms=None) for i, s in enumerate(states)]
        known = read_status(home).peers[0].model_copy(update={"connected": False})
        return judge(running(home, dials=tuple(dials), peers=(known,))).reasons[-1]

    assert "the peer given does not answer; a firewall may drop" in alone("does not answer")
    assert "none of the 2 peers given answers; is the address right" in alone("can't be reached", "does not answer")
    assert "refuse this node or can't be used" in alone("the peer refused: you are banned")
    assert "none of 1 known peers answers" in alone()


def test_how_the_node_reaches_the_swarm_is_said_in_words(home: Path) -> None:
    peer = read_status(home).peers[0].model_copy(update={"round_trip_ms": 20.0})
    inbound = peer.model_copy(update={"direction": "in", "round_trip_ms": 102.4})
    assert reach(running(home)).startswith("1 neighbours dialled, 0 dialled in, nobody has dialled in: behind a NAT")
    assert reach(running(home, peers=(peer, inbound))) == (
        "1 neighbours dialled, 1 dialled in, round trips 20 to 102 ms"
    )
    assert reach(running(home, peers=())) == "alone: others join by dialling this node"


def test_what_others_do_is_told_and_costs_the_node_nothing(home: Path) -> None:
    now = read_status(home).at_ms
    flooder = read_status(home).peers[0].model_copy(update={"throttled_ms": 90_000, "throttled_at_ms": now})
    twin = flooder.model_copy(update={"throttled_at_ms": 0, "twin_at_ms": now, "peer_id": "ab" * 32})
    judgement = judge(running(home, peers=(flooder, twin)))
    assert judgement.level is Level.HEALTHY
    assert "sends more than a peer may and is held back (90 s in all)" in judgement.notes[0]
    assert judgement.notes[1] == "two daemons run with the identity of peer abababababab"
    own = judge(running(home, twin_at_ms=now))
    assert own.level is Level.DEGRADED
    assert "a second daemon runs with this node's identity" in own.reasons[0]


def test_exit_codes_and_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lock_home(home):
        assert run_health(HealthOptions(home, as_json=True)) == 0
    document = json.loads(capsys.readouterr().out)
    (node,) = document["nodes"]
    assert node["level"] == "healthy"
    assert node["status"]["schema_version"] == 1
    assert run_health(HealthOptions(home)) == 2
    assert run_health(HealthOptions(home / "nowhere", as_json=True)) == 2
    assert run_health(HealthOptions(home, peers=("127.0.0.1:1",), only=True, as_json=True)) == 2


def test_health_is_quick_and_imports_no_torch(home: Path) -> None:
    code = (
        "import sys, time; started = time.monotonic()\n"
        "from pathlib import Path\n"
        "from ftis_node.commands.health import HealthOptions, run_health\n"
        f"run_health(HealthOptions(Path({str(home)!r})))\n"
        "heavy = {'torch', 'transformers', 'grpc', 'hivemind', 'numpy', 'asyncio', 'ftis_node.config'}\n"
        "heavy &= set(sys.modules)\n"
        "print(heavy or 'light', file=sys.stderr)\n"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "light"
    assert time.monotonic() - started < 20  # a hang, not a speed, is what this looks for


def test_strings_from_peers_can_not_move_the_cursor_or_style_the_screen(home: Path) -> None:
    """Mallory's model is named with an escape sequence and rich markup."""
    peer = read_status(home).peers[0].model_copy(update={"model": "\x1b[2J[bold red]evil[/]\r"})
    output = io.StringIO()
    answer = Answer("here", True, PEER.hex(), running(home, peers=(peer,)))
    print_health(health_document([answer], asked_at_ms=0, bounds=None), Console(file=output, width=200))
    shown = output.getvalue()
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "[bold red]evil[/]" in shown


def test_a_peers_answer_is_bounded(home: Path) -> None:
    honest = json.loads(read_status(home).model_dump_json())
    for change in (
        {"model": "x" * 10_000},
        {"round": "many"},
        {"peers": honest["peers"] * 5000},
        {"activity": None},
    ):
        with pytest.raises(ValidationError):
            NodeStatus.model_validate_json(json.dumps(honest | change))
    assert NodeStatus.model_validate_json(json.dumps(honest | {"new_field": 1}))
