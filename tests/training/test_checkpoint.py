"""Checkpoints: whole or not at all, whatever happens while they are written or after."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ftis_node.config import LoraConfig, ModelConfig, TrainingConfig
from ftis_node.errors import CheckpointError
from ftis_node.models import load_model
from ftis_node.training.checkpoint import (
    TOKENIZER_BYTES,
    CheckpointProgress,
    checkpoint_bytes,
    load_newest,
    save_checkpoint,
)
from ftis_node.training.master_weights import MasterWeights
from ftis_node.training.optimizer import build_optimizer

STATE = {"optimizer": {"state": {}, "param_groups": []}, "masters": [torch.ones(3)]}


def small(rank: int = 0) -> Any:
    return load_model(ModelConfig(name="builtin:small"), LoraConfig(rank=rank), seed=0).model


def mark(model: Any, value: float) -> None:
    """Make a model recognisable."""
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(value)


def mark_of(model: Any) -> float:
    return float(next(p for p in model.parameters() if p.requires_grad).detach().flatten()[0])


def save(directory: Path, model: Any, number: int) -> Path:
    mark(model, float(number))
    return save_checkpoint(directory, model=model, optimizer_state=STATE, progress=CheckpointProgress(number))


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_state_and_progress_come_back(tmp_path: Path, rank: int) -> None:
    model = small(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    save_checkpoint(tmp_path, model=model, optimizer_state=STATE, progress=CheckpointProgress(7))
    other = small(rank)
    restored = load_newest(tmp_path, model=other)
    assert restored is not None
    assert restored.progress == CheckpointProgress(7)
    assert torch.equal(restored.optimizer_state["masters"][0], torch.ones(3))
    for (name, saved), loaded in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(saved, loaded), name


def test_the_model_folder_is_what_transformers_reads(tmp_path: Path) -> None:
    model = small()
    folder = save(tmp_path, model, 3)
    assert mark_of(AutoModelForCausalLM.from_pretrained(folder / "model")) == 3.0


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    model = small()
    for number in range(1, 5):
        save(tmp_path, model, number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000003", "round-00000004"]


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "none", model=small()) is None


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_any_damaged_file_of_the_newest_falls_back_to_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = small()
    save(tmp_path, model, 1)
    newest = save(tmp_path, model, 2)
    for file in files_of(newest):
        kept = file.read_bytes()
        if damage == "missing":
            file.unlink()
        elif damage == "truncated":
            file.write_bytes(kept[: len(kept) // 2])
        else:
            changed = bytearray(kept)
            changed[len(changed) // 2] ^= 1
            file.write_bytes(bytes(changed))
        caplog.clear()
        restored = load_newest(tmp_path, model=model)
        assert restored is not None, file
        assert restored.progress.round_number == 1, file
        assert mark_of(model) == 1.0
        assert "is damaged" in caplog.text
        file.write_bytes(kept)


def test_when_all_are_damaged_the_start_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    model = small()
    for number in (1, 2):
        (save(tmp_path, model, number) / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged; restore the folder from a backup"):
        load_newest(tmp_path, model=model)


@pytest.mark.parametrize(("saved", "loaded"), [(0, 4), (4, 0), (4, 8)])
def test_another_choice_of_trained_weights_is_refused_by_name(tmp_path: Path, saved: int, loaded: int) -> None:
    save(tmp_path, small(saved), 1)
    with pytest.raises(CheckpointError, match="another model or another choice of trained weights"):
        load_newest(tmp_path, model=small(loaded))


def test_the_same_round_again_replaces_the_checkpoint(tmp_path: Path) -> None:
    model = small()
    save(tmp_path, model, 1)
    mark(model, 9.0)
    save_checkpoint(tmp_path, model=model, optimizer_state=STATE, progress=CheckpointProgress(1))
    mark(model, 0.0)
    load_newest(tmp_path, model=model)
    assert mark_of(model) == 9.0


def test_sigkill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A child saves in a loop and is killed at a random moment, ten times over."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, '.')\n"
        "from tests.training.test_checkpoint import save, small\n"
        "model = small(); number = int(sys.argv[2])\n"
        "while True:\n"
        "    number += 1; save(Path(sys.argv[1]), model, number); print(number, flush=True)\n"
    )
    rng, last = random.Random(0), 0
    model = small()
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(last)], stdout=subprocess.PIPE, cwd=Path.cwd()
        )
        assert child.stdout is not None
        first = int(child.stdout.readline())
        time.sleep(rng.random() * 0.1)
        os.kill(child.pid, signal.SIGKILL)
        written = [first, *map(int, child.stdout.read().split())]
        child.wait()
        child.stdout.close()
        restored = load_newest(tmp_path, model=model)
        assert restored is not None
        last = restored.progress.round_number
        assert last >= written[-1]  # what was reported as saved is there
        assert mark_of(model) == float(last)


def test_leftovers_of_a_crash_are_removed_by_the_next_save(tmp_path: Path) -> None:
    model = small()
    leftover = tmp_path / ".writing-round-00000009"
    shutil.copytree(save(tmp_path, model, 1), leftover)
    save(tmp_path, model, 2)
    assert not leftover.exists()


@pytest.mark.parametrize("rank", [0, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_checkpoint_takes_is_known_before_it_is_written(tmp_path: Path, rank: int, dtype: torch.dtype) -> None:
    loaded = load_model(ModelConfig(name="builtin:large"), LoraConfig(rank=rank), seed=0)
    model = loaded.model.to(dtype)
    masters = MasterWeights([p for p in model.parameters() if p.requires_grad])
    for parameter in masters.parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(masters.parameters, TrainingConfig(), 1e-6)
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "masters": masters.state()}
    folder = save_checkpoint(
        tmp_path, model=model, optimizer_state=state, progress=CheckpointProgress(1), tokenizer=loaded.tokenizer
    )
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    told = checkpoint_bytes(model, optimizer="adam")
    assert told - TOKENIZER_BYTES <= written <= told
    assert written < 1.2 * (told - TOKENIZER_BYTES)
