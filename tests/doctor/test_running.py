"""What doctor makes of a running daemon's own state."""

from pathlib import Path

import pytest

from ftis_node.doctor.findings import DEVICE, DHT, MEMORY, MODEL, STEP, Level
from ftis_node.doctor.running import of_daemon
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.store.network import NetworkStore
from ftis_node.store.reports import RoundReport


def report(number: int, **changes: str) -> RoundReport:
    return RoundReport(round=number, own_groups=1, peer_groups=1, stepped=not changes).model_copy(update=changes)


@pytest.fixture
def status(tmp_path: Path) -> NodeStatus:
    NetworkStore(tmp_path).close()
    changes = {"learner": "running", "model": "builtin:small", "parameters": 1000, "memory": "micro-batches of 512"}
    return read_status(tmp_path).model_copy(update=changes)


def test_a_daemon_that_has_finished_a_round_has_shown_that_all_works(status: NodeStatus) -> None:
    status = status.model_copy(update={"last_round": report(7)})
    for check in (DEVICE, MODEL, MEMORY, STEP):
        found = of_daemon(check, status, 42)
        assert found.level is Level.OK
        assert found.found.startswith("left out, because the daemon (process 42) runs; it has finished round 7")
    assert "builtin:small, 1,000 parameters" in of_daemon(MODEL, status, 42).found
    assert "micro-batches of 512" in of_daemon(MEMORY, status, 42).found


def test_one_that_has_not_or_whose_learner_died_has_not(status: NodeStatus) -> None:
    assert of_daemon(MODEL, status, 42).level is Level.WARNING
    assert of_daemon(MODEL, None, 42).level is Level.WARNING
    died = status.model_copy(update={"learner": "died (exit code 1), restarting in 2 s"})
    assert of_daemon(MODEL, died, 42).level is Level.FAILURE
    assert "died (exit code 1)" in of_daemon(MODEL, died, 42).found
    relay = status.model_copy(update={"learner": "none: this is a relay"})
    assert of_daemon(MODEL, relay, 42).level is Level.OK


def test_a_round_without_a_step_is_a_warning(status: NodeStatus) -> None:
    status = status.model_copy(update={"last_round": report(7, skipped_reason="no sequence has an advantage")})
    assert of_daemon(STEP, status, 42).level is Level.WARNING
    assert of_daemon(DEVICE, status, 42).level is Level.OK


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("on, 3 nodes known", Level.OK),
        ("on, nobody known yet", Level.OK),
        ("on, but the DHT refuses this node, because its clock and the peer's differ", Level.WARNING),
        ("off: hivemind can't be imported", Level.WARNING),
        ("off", Level.OK),
    ],
)
def test_the_dht_as_the_daemon_has_it(status: NodeStatus, said: str, level: Level) -> None:
    assert of_daemon(DHT, status.model_copy(update={"dht": said}), 42).level is level
