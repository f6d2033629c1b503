"""Trackers: what arrives is what the rounds reported, once; a tracker that hangs or fails costs the node nothing."""

import contextlib
import functools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ftis_node.config import TrackingConfig
from ftis_node.errors import ConfigError, HomeError
from ftis_node.onlookers import Trackers
from ftis_node.store.learner import LearnerStore
from ftis_node.store.reader import StoreReader
from ftis_node.store.reports import Totals
from ftis_node.tracking import __main__ as tracking
from ftis_node.tracking.series import point_of
from tests.daemons import Daemon, processes, write_run
from tests.status.nodes import OWN_ID, report_of, trained_home

QUICK = ("training.groups_per_step=2", "training.learning_rate=3e-4", "training.min_own_share=1.0")
KEY = "k" * 40  # W&B's client looks at its form only


@contextlib.contextmanager
def tracked(kind: str, target: str, home: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A tracker's process as the network half starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ftis_node.tracking", kind, target, str(home), "info"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env},
    )  # fmt: skip
    try:
        with process:
            yield process
    finally:
        process.kill()


def add_rounds(home: Path, numbers: range) -> None:
    store = LearnerStore(home)
    for number in numbers:
        store.finish_round(number, [], report_of(number, Totals(), peers=False), [], forget_before_ms=0)
    store.close()


def until(condition: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


def events(folder: Path, tag: str = "reward/own_reward") -> list[tuple[int, float]]:
    """Step and value as TensorBoard shows them."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)] if tag in reader.Tags()["scalars"] else []


def holds(folder: Path, rounds: int) -> bool:
    return folder.exists() and len(events(folder)) >= rounds


def tensorboard_folder(home: Path) -> Path:
    return home / "runs" / f"test-{OWN_ID.hex()[:12]}"


# --- TensorBoard --------------------------------------------------------------------------------


def test_event_files_hold_every_round_once_across_restarts_and_kills(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=220, peers=2)
    folder = tensorboard_folder(home)
    for upto, number in ((220, signal.SIGKILL), (230, signal.SIGKILL), (233, signal.SIGTERM)):
        with StoreReader(home) as store:
            last = store.rounds_after(0, 1000)[-1][0].round
        add_rounds(home, range(last + 1, upto + 1))
        with tracked("tensorboard", "runs", home) as process:
            until(functools.partial(holds, folder, upto), f"round {upto} is written")
            process.send_signal(number)
            code = process.wait(20)
        assert code == (0 if number == signal.SIGTERM else -number)
    steps = events(folder)
    assert [step for step, _ in steps] == list(range(1, 234))
    with StoreReader(home) as store:
        reported = [report.own_reward for report, _ in store.rounds_after(0, 1000)]
    assert [value for _, value in steps] == pytest.approx(reported, abs=1e-6)
    assert len(events(folder, "reward/peer_reward")) == 220, "what isn't known is absent"


def test_a_round_cut_in_half_by_a_crash_is_written_again(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=5)
    folder = tensorboard_folder(home)
    with tracked("tensorboard", "runs", home) as process:
        until(lambda: folder.exists() and len(events(folder)) == 5, "all rounds are written")
        process.kill()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    assert len(events(folder)) == 4
    with tracked("tensorboard", "runs", home) as process:
        until(lambda: len(events(folder)) == 5, "the fifth is written again")
        process.terminate()
        assert process.wait(20) == 0
    assert [step for step, _ in events(folder)] == [1, 2, 3, 4, 5]


def test_a_deleted_folder_is_filled_anew(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=2)
    for _ in range(2):
        stop = threading.Event()
        stop.set()
        tracking.follow("tensorboard", str(tmp_path / "elsewhere"), home, stop)
        (folder,) = (tmp_path / "elsewhere").iterdir()
        assert len(events(folder)) == 2
        for file in folder.iterdir():
            file.unlink()


def test_a_folder_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=1)
    os.mkfifo(home / "pipe")
    with pytest.raises(HomeError, match=r"tracking\.tensorboard = 'pipe': can't be written: ") as caught:
        tracking.follow("tensorboard", "pipe", home, threading.Event())
    assert "\n" not in str(caught.value)


def test_a_tracker_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "import ftis_node.tracking.__main__, ftis_node.tracking.tensorboard_files, ftis_node.tracking.wandb_run\n"
        "print({'torch', 'transformers', 'grpc', 'tensorflow'} & set(sys.modules) or 'light')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "light"


def test_a_tracker_ends_with_the_network_half(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=1)
    with tracked("tensorboard", "runs", home) as process:
        until(tensorboard_folder(home).exists, "it has begun")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == tracking.EXIT_ORPHANED


def test_names_are_those_of_the_metrics() -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    point = point_of(report_of(9, Totals(), peers=True), 5_000)
    assert (point.round, point.at_seconds) == (9, 5.0)
    for name in point.values:
        group, _, rest = name.partition("/")
        assert f"`{name}`" in document or group in ("phase_seconds", "sequences"), name
        assert rest


# --- Weights & Biases ---------------------------------------------------------------------------


def reads(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def test_wandb_offline_holds_every_round_once(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=3)
    mark = home / "tracking" / "wandb-swarm.round"
    for upto in (3, 5):
        add_rounds(home, range(4, upto + 1))
        with tracked("wandb", "swarm", home, WANDB_MODE="offline") as process:
            until(functools.partial(reads, mark, str(upto)), f"round {upto} is handed over")
            process.terminate()
            assert process.wait(30) == 0
    runs = sorted((home / "tracking" / "wandb").glob("offline-run-*"))
    assert len(runs) == 2
    assert len({run.name.rpartition("-")[2] for run in runs}) == 1, "both go on with one run"
    assert [logged_steps(run) for run in runs] == [[1, 2, 3], [4, 5]]
    assert not [file for run in runs for file in (run / "files").rglob("*") if file.name == "wandb-metadata.json"]


def logged_steps(run: Path) -> list[int]:
    """Out of the file that W&B's client keeps of an offline run."""
    from wandb.proto import wandb_internal_pb2

    (file,) = run.glob("*.wandb")
    records = [
        wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]
        for data in log_records(file.read_bytes())
    ]
    steps = [record.history.step.num for record in records if record.WhichOneof("record_type") == "history"]
    names = {"/".join(item.nested_key) for record in records for item in record.history.item}
    assert "reward/own_reward" in names
    return steps


def log_records(data: bytes) -> Iterator[bytes]:
    """Of LevelDB's log format: blocks of 32 KiB with records, which may be cut into parts."""
    position, whole = 7, b""  # behind the file's own header
    while position + 7 <= len(data):
        room = 32_768 - position % 32_768
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_without_a_key_wandb_is_one_line(tmp_path: Path) -> None:
    home = trained_home(tmp_path / "home", rounds=1)
    env = {"WANDB_API_KEY": "", "HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:1"}
    with tracked("wandb", "swarm", home, **env) as process:
        assert process.wait(60) == 1
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    lines = [line for line in errors.splitlines() if "ERROR" in line]
    assert len(lines) == 1, errors
    assert "tracking.wandb = 'swarm': " in lines[0]
    assert "Traceback" not in errors


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
        Trackers(tmp_path, TrackingConfig(wandb="swarm"), "info")
    Trackers(tmp_path, TrackingConfig(), "info")
