"""Trackers beside a node: one that hangs or fails costs it nothing."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftis_node.config import TrackingConfig
from ftis_node.errors import ConfigError
from ftis_node.log import LogSettings
from ftis_node.onlookers import Trackers
from ftis_node.store.reports import Totals
from ftis_node.tracking.series import point_of
from tests.daemons import Daemon, processes, write_run
from tests.status.nodes import report_of
from tests.tracking.driving import events, until

QUICK = ("training.groups_per_step=2", "training.learning_rate=3e-4", "training.min_own_share=1.0")
KEY = "k" * 40  # W&B's client looks at its form only


# --- TensorBoard --------------------------------------------------------------------------------


def test_a_tracker_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "import ftis_node.tracking.__main__, ftis_node.tracking.tensorboard_files, ftis_node.tracking.wandb_run\n"
        "print({'torch', 'transformers', 'grpc', 'tensorflow'} & set(sys.modules) or 'light')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"


def test_names_are_those_of_the_metrics() -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    point = point_of(report_of(9, Totals(), peers=True), 5_000)
    assert (point.round, point.at_seconds) == (9, 5.0)
    for name in point.values:
        group, _, rest = name.partition("/")
        assert f"`{name}`" in document or group in ("phase_seconds", "sequences"), name
        assert rest


# --- Weights & Biases ---------------------------------------------------------------------------


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """A server that takes every connection and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def trackers_of(home: Path) -> list[int]:
    return [pid for kind in ("wandb", "tensorboard") for pid in trackers(kind, home)]


def trackers(kind: str, home: Path) -> list[int]:
    return [pid for pid in processes(f"ftis_node.tracking {kind} ") if str(home) in command_line(pid)]


def command_line(pid: int) -> str:
    return _of_process(pid, "cmdline")


def environment(pid: int) -> str:
    return _of_process(pid, "environ")


def _of_process(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


@pytest.mark.slow
def test_trackers_that_hang_hold_up_neither_a_round_nor_the_stop(tmp_path: Path) -> None:
    """W&B's server swallows everything, TensorBoard's process is frozen."""
    home = tmp_path / "home"
    sets = (*QUICK, "tracking.wandb=swarm", "tracking.tensorboard=runs")
    with black_hole() as url:
        env = {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_MODE": "online"}
        with Daemon(home, run=write_run(tmp_path), sets=sets, env=env) as node:
            status = node.after_round(1)
            (frozen,) = trackers("tensorboard", home)
            os.kill(frozen, signal.SIGSTOP)
            until(lambda: bool(trackers("wandb", home)), "W&B's client runs")
            began = time.monotonic()
            node.after_round(status.round + 5)
            assert node.status().learner == "running"
            assert time.monotonic() - began < 30
            assert trackers("wandb", home), "it hangs: it has neither ended nor failed"
            assert not (home / "tracking" / "wandb-swarm.round").exists(), "and has reported nothing"
            began = time.monotonic()
            assert node.terminate() == 0
            assert time.monotonic() - began < 15
    assert "the tensorboard tracker hangs and is killed" in node.log
    assert trackers_of(home) == []
    until(lambda: not [pid for pid in processes("wandb-core") if url in environment(pid)], "W&B's client is gone", 10)


@pytest.mark.slow
def test_a_tracker_that_fails_is_started_again_and_again_and_training_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "runs").write_text("in the way")
    sets = (*QUICK, "tracking.tensorboard=runs")
    with Daemon(home, run=write_run(tmp_path), sets=sets) as node:
        node.until(lambda _: node.log.count("the tensorboard tracker ended (exit code 1)") >= 2, "it failed twice")
        assert "tensorboard: ERROR tracking.tensorboard = 'runs': can't be written: Not a directory" in node.log
        assert "is started again in 2 s" in node.log
        assert "is started again in 4 s" in node.log
        (home / "runs").unlink()
        reached = node.status().round
        node.after_round(reached + 1)
        until(lambda: any(events(folder) for folder in (home / "runs").glob("*")), "what was missed is written")
        assert node.terminate() == 0


def test_a_tracker_whose_package_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ftis_node.tracking.process.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install ftis-node\[wandb\], or set it to off"):
        Trackers(tmp_path, TrackingConfig(wandb="swarm"), LogSettings())
    Trackers(tmp_path, TrackingConfig(), LogSettings())
