"""``ftis-node export``: the trained model of a home as an ordinary model folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import CheckpointError, HomeError
from ftis_node.models import load_model
from ftis_node.training.checkpoint import newest_model

TEMPORARY_SUFFIX = ".writing"


def run_export(home: Path, target: Path, *, merge: bool) -> int:
    """Copy the newest checkpoint's model; refuses to overwrite. Works while the node runs. Raises FtisError."""
    if target.exists():
        raise HomeError(f"{target}: exists already and is not overwritten")
    newest = newest_model(home / "checkpoints")
    if newest is None:
        raise CheckpointError(f"{home / 'checkpoints'}: there is no checkpoint yet")
    round_number, model = newest
    adapter = (model / "adapter_config.json").exists()
    writing = target.with_name(target.name + TEMPORARY_SUFFIX)
    try:
        shutil.rmtree(writing, ignore_errors=True)
        if adapter and merge:
            loaded = load_model(ModelConfig(name=str(model.absolute())), LoraConfig(), seed=0)
            loaded.model.save_pretrained(writing)
            loaded.tokenizer.save_pretrained(writing)
        else:
            shutil.copytree(model, writing)
        writing.rename(target)
    except OSError as error:
        shutil.rmtree(writing, ignore_errors=True)
        raise HomeError(f"{target}: can't be written: {error}") from error
    kind = "adapter (its base model is named in adapter_config.json; --merge writes whole weights)"
    print(f"wrote the {kind if adapter and not merge else 'model'} after round {round_number} to {target}")
    return 0
