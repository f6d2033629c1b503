"""What W&B's client was given, and what is said when it refuses."""

import functools
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.status.nodes import trained_home
from tests.tracking.driving import add_rounds, tracked, until


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
    assert len({run_id(run) for run in runs}) == 1, "both go on with one run"
    assert [logged_steps(run) for run in runs] == [[1, 2, 3], [4, 5]]
    assert not [file for run in runs for file in (run / "files").rglob("*") if file.name == "wandb-metadata.json"]


def logged_steps(run: Path) -> list[int]:
    """Out of the file that W&B's client keeps of an offline run."""
    held = records(run)
    steps = [record.history.step.num for record in held if record.WhichOneof("record_type") == "history"]
    names = {"/".join(item.nested_key) for record in held for item in record.history.item}
    assert "reward/own_reward" in names
    return steps


def run_id(run: Path) -> str:
    """The folder's name isn't it: a second one of the same second has a number behind it."""
    (found,) = (record.run.run_id for record in records(run) if record.WhichOneof("record_type") == "run")
    return str(found)


def records(run: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    (file,) = run.glob("*.wandb")
    return [
        wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]
        for data in log_records(file.read_bytes())
    ]


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
