"""Which file or folder a ``--model`` names, and whether it can be one, before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from ftis_node.errors import ModelError

BUILTIN_PREFIX = "builtin:"
BUILTIN_FOLDER = Path(__file__).parent / "builtin"
GGUF_SUFFIX = ".gguf"
GGUF_MAGIC = b"GGUF"
GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "dxg", "kfd")
"""In ``/dev``: NVIDIA's drivers, those of its small boards, Windows' own and AMD's."""
_PATH_STARTS = ("/", "./", "../", "~")


def find_model(name: str) -> Path | None:
    """The folder or GGUF file; None for an id of the hub. Raises ModelError for what can't be loaded."""
    if name.startswith(BUILTIN_PREFIX):
        return _builtin_folder(name)
    path = Path(name).expanduser()
    if name.endswith(GGUF_SUFFIX) and path.is_file():
        _check_gguf(path, name)
        return path
    if path.is_dir():
        _check_folder(path, name)
        return path
    if name.startswith(_PATH_STARTS) or name.endswith(GGUF_SUFFIX) or name.count("/") > 1:
        raise ModelError(f"--model {name}: there is no such folder or GGUF file")
    return None


def check_device(name: str, *, devices: Path = Path("/dev")) -> None:
    """Raises ModelError for a GPU on a machine that has no driver of one; whether it works is seen later."""
    if name.startswith("cuda") and not any(next(devices.glob(pattern), None) for pattern in GPU_FILES):
        raise ModelError(f"model.device = {name!r}: this machine has no usable GPU; use auto or cpu")


def _builtin_folder(name: str) -> Path:
    folder = BUILTIN_FOLDER / name.removeprefix(BUILTIN_PREFIX)
    if not (folder / "config.json").exists():
        names = sorted(BUILTIN_PREFIX + path.parent.name for path in BUILTIN_FOLDER.glob("*/config.json"))
        raise ModelError(f"--model {name}: there is no such built-in model; there are {', '.join(names)}")
    return folder


def _check_folder(folder: Path, name: str) -> None:
    """Tell what is missing before transformers guesses."""
    adapter = (folder / "adapter_config.json").exists()
    if not adapter and not (folder / "config.json").exists():
        raise ModelError(f"--model {name}: can't be loaded: the folder has no config.json")
    if not any((folder / file).exists() for file in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(f"--model {name}: can't be loaded: the folder has no tokenizer (tokenizer.json)")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"--model {name}: can't be loaded: the folder has no weights (*.safetensors; pickles are not read)"
        )


def _check_gguf(path: Path, name: str) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelError(f"--model {name}: can't be read: {error.strerror}") from error
    if magic != GGUF_MAGIC:
        raise ModelError(f"--model {name}: can't be read as GGUF: it begins otherwise")
