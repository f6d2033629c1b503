"""Checkpoints: written whole or not at all, verified when read, the one before kept.

A checkpoint is a folder ``round-00000012``::

    model/           what ``save_pretrained`` writes, with the tokenizer: loads in transformers, peft and vLLM as it is
    optimizer.pt     optimizer state (tensors and numbers only)
    manifest.json    round, what was trained, and the SHA-256 of every other file
    manifest.sha256  the manifest's own

It is made under a temporary name, brought to disk file by file, and renamed. Nothing that is found
under a temporary name is ever read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file

from ftis_node.errors import CheckpointError

log = logging.getLogger(__name__)

KEPT = 2
TOKENIZER_BYTES = 16 * 2**20
TEMPORARY_PREFIX = ".writing-"
FORMAT = 1
MANIFEST, MANIFEST_DIGEST = "manifest.json", "manifest.sha256"


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int
    round_number: int
    trained: dict[str, list[int]]
    files: dict[str, str]


@dataclass(frozen=True)
class CheckpointProgress:
    """How far training was when the checkpoint was made."""

    round_number: int


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read back; the model's weights are loaded already."""

    progress: CheckpointProgress
    optimizer_state: dict[str, Any]
    folder: Path


def save_checkpoint(
    directory: Path, *, model: Any, optimizer_state: dict[str, Any], progress: CheckpointProgress, tokenizer: Any = None
) -> Path:
    """Write a checkpoint and drop the oldest beyond ``KEPT``; durable when this returns. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(directory)
    name = f"round-{progress.round_number:08d}"
    writing = directory / f"{TEMPORARY_PREFIX}{name}"
    model.save_pretrained(writing / "model", safe_serialization=True)
    if tokenizer is not None:
        tokenizer.save_pretrained(writing / "model")
    torch.save(optimizer_state, writing / "optimizer.pt")
    files = sorted(path for path in writing.rglob("*") if path.is_file())
    manifest = _Manifest(
        format=FORMAT,
        round_number=progress.round_number,
        trained=_trained_shapes(model),
        files={str(path.relative_to(writing)): _digest(path) for path in files},
    )
    (writing / MANIFEST).write_text(manifest.model_dump_json())
    (writing / MANIFEST_DIGEST).write_text(_digest(writing / MANIFEST))
    for path in (*files, writing / MANIFEST, writing / MANIFEST_DIGEST, writing / "model", writing):
        _sync(path)
    final = directory / name
    if final.exists():  # the same round once more, after a resume from the checkpoint before it
        shutil.rmtree(final)
    writing.rename(final)
    _sync(directory)
    for old in _found(directory)[KEPT:]:
        shutil.rmtree(old)
    return final


def checkpoint_bytes(model: Any, *, optimizer: str) -> int:
    """About what one checkpoint takes on disk: the weights that are saved (of an adapter it alone), the optimizer's
    state, master weights where the model isn't float32, and the tokenizer.
    """
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    saved = trained if len(trained) < len(parameters) else parameters
    moments = 8 if optimizer == "adam" else 2
    masters = 0 if all(parameter.dtype == torch.float32 for parameter in trained) else 4
    weights = sum(parameter.numel() * parameter.element_size() for parameter in saved)
    return weights + sum(parameter.numel() for parameter in trained) * (moments + masters) + TOKENIZER_BYTES


def load_newest(directory: Path, *, model: Any) -> Restored | None:
    """Load the newest checkpoint that is whole; None when there is none at all.

    A damaged one is passed over with a warning. Raises CheckpointError when all are damaged, or when
    the newest belongs to another model or another choice of trained weights.
    """
    for folder, manifest in _whole(directory):
        _check_same_model(folder, manifest, model)
        try:
            state = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
            _load_weights(folder / "model", model)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: can't be loaded although it is whole: {error}") from error
        return Restored(CheckpointProgress(manifest.round_number), state, folder)
    return None


def newest_model(directory: Path) -> tuple[int, Path] | None:
    """Round and model folder of the newest checkpoint that is whole; None when there is none at all."""
    for folder, manifest in _whole(directory):
        return manifest.round_number, folder / "model"
    return None


def _whole(directory: Path) -> Iterator[tuple[Path, _Manifest]]:
    """Checkpoints that are whole, newest first; damaged ones are passed over with a warning.

    Raises CheckpointError when there are some, and all are damaged.
    """
    found = _found(directory)
    damaged = 0
    for folder in found:
        try:
            manifest = _verify(folder)
        except (OSError, ValueError) as error:
            log.warning("checkpoint %s is damaged (%s); trying the one before", folder, error)
            damaged += 1
            continue
        yield folder, manifest
    if found and damaged == len(found):
        raise CheckpointError(
            f"{directory}: all {len(found)} checkpoints are damaged; restore the folder from a backup, or move it away"
            " to start again from the model's first weights"
        )


def _found(directory: Path) -> list[Path]:
    """Checkpoints by name, newest first."""
    return sorted((path for path in directory.glob("round-*") if path.is_dir()), reverse=True)


def _remove_leftovers(directory: Path) -> None:
    for leftover in directory.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover)


def _verify(folder: Path) -> _Manifest:
    """Raises ValueError or OSError when any file is missing, changed or too many."""
    if (folder / MANIFEST_DIGEST).read_bytes().decode("ascii", "replace") != _digest(folder / MANIFEST):
        raise ValueError(f"{MANIFEST} has changed")
    try:
        manifest = _Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except ValidationError as error:
        raise ValueError("its manifest can't be read") from error
    if manifest.format != FORMAT:
        raise ValueError(f"format {manifest.format}, this version reads {FORMAT}")
    for name, digest in manifest.files.items():
        if _digest(folder / name) != digest:
            raise ValueError(f"{name} has changed")
    return manifest


def _check_same_model(folder: Path, manifest: _Manifest, model: Any) -> None:
    here, there = _trained_shapes(model), manifest.trained
    if here == there:
        return
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    raise CheckpointError(
        f"{folder}: belongs to another model or another choice of trained weights ({len(differing)} differ, the first"
        f" is {differing[0]}); use the --model and [lora] that it was made with, or another --home"
    )


def _trained_shapes(model: Any) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in model.named_parameters() if p.requires_grad}


def _load_weights(folder: Path, model: Any) -> None:
    files = sorted(folder.glob("*.safetensors"))
    weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    if (folder / "adapter_config.json").exists():
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, weights)
        return
    result = model.load_state_dict(weights, strict=False)
    # A tied output head is stored once, under the name of the embedding.
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = [name for name in result.missing_keys if name not in tied]
    if missing or result.unexpected_keys:
        raise RuntimeError(f"weights missing {missing[:3]}, not expected {result.unexpected_keys[:3]}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
