"""Where a model's files are: built in, in a local folder, in a GGUF file, or on the hub."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from ftis_node.errors import ModelError
from ftis_node.model_places import find_model

log = logging.getLogger(__name__)


def model_source(name: str) -> str:
    """What transformers loads for a ``--model``: a folder, or a hub id. Raises ModelError.

    A GGUF file is converted to a folder of safetensors once, and found again by the hash of its content.
    """
    place = find_model(name)
    if place is None:
        return name
    return str(_converted(place, name)) if place.is_file() else str(place)


def cache_folder() -> Path:
    """For what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ftis-node"


def _converted(file: Path, name: str) -> Path:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    folder = cache_folder() / "gguf" / digest
    if folder.exists():
        return folder
    log.info("converting %s for the first time; this takes about a minute per billion parameters", file)
    started = time.monotonic()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as writing:
            _convert(file, Path(writing) / "model", name)
            try:
                (Path(writing) / "model").rename(folder)
            except OSError:  # another process was faster
                if not folder.exists():
                    raise
    except OSError as error:
        raise ModelError(f"--model {name}: can't be converted into {folder}: {error}") from error
    log.info("converted into %s in %.0f s", folder, time.monotonic() - started)
    return folder


def _convert(file: Path, folder: Path, name: str) -> None:
    """De-quantised weights and the tokenizer as an ordinary folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        # Its progress bars, which nothing else switches off, would fill the log of a daemon.
        with open(os.devnull, "w") as null, redirect_stderr(null):
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, trust_remote_code=False)
            model: Any = AutoModelForCausalLM.from_pretrained(
                str(file.parent), gguf_file=file.name, trust_remote_code=False, dtype="auto"
            )
    except Exception as error:  # its readers raise what they come across in a damaged file
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"--model {name}: can't be read as GGUF: {text}") from error
    # transformers would not save what it takes for quantised.
    model.hf_quantizer, model.is_quantized = None, False
    for owner, attribute in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
