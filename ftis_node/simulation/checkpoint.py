"""All parties of a run in one file, so that they can't be of different rounds.

It is written under another name and renamed. What is trained is stored, and nothing else of the models: frozen weights
come from where they came from.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from ftis_node.errors import CheckpointError, HomeError
from ftis_node.identity import sync_directory
from ftis_node.simulation.engine import Engine

FORMAT = 2


@dataclass(frozen=True)
class Progress:
    """Where the result file stood, in bytes."""

    results_bytes: int


def save(path: Path, engine: Engine, progress: Progress) -> None:
    """Durable when this returns. Raises HomeError."""
    content = {
        "format": FORMAT,
        "results_bytes": progress.results_bytes,
        "state": engine.dump(),
        "weights": {node.spec.name: _trained(node.party.loaded.model) for node in engine.nodes},
        "optimizers": {node.spec.name: node.party.trainer.state_dict() for node in engine.nodes},
    }
    writing = path.with_name(path.name + ".writing")
    try:
        with writing.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        writing.rename(path)
        sync_directory(path.parent)
    except (OSError, RuntimeError) as error:  # torch's writer turns the one into the other
        writing.unlink(missing_ok=True)
        raise HomeError(f"{path}: can't be written: {str(error).splitlines()[0]}") from error


def restore(path: Path, engine: Engine) -> Progress:
    """Bring a run's parties to where they were. Raises CheckpointError for a file that isn't of this run."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {content['format']}, this version reads {FORMAT}; delete it")
        for node in engine.nodes:
            _load(node.party.loaded.model, content["weights"][node.spec.name])
            node.party.trainer.load_state_dict(content["optimizers"][node.spec.name])
            node.party.engine.sync()
        engine.load(content["state"])
        return Progress(int(content["results_bytes"]))
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError, ValidationError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{path}: can't be read: {first_line}; delete it and the result file beside it to start anew"
        ) from error


def _trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _load(model: Any, weights: dict[str, torch.Tensor]) -> None:
    here = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if here.keys() != weights.keys():
        raise ValueError(f"{len(weights)} trained tensors are stored, the model has {len(here)}")
    for name, parameter in here.items():
        parameter.copy_(weights[name])
