"""Models with their tokenizers: built-in ones, local folders, the hub."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import ModelError
from ftis_node.vocabulary import Vocabulary

BUILTIN_PREFIX = "builtin:"
BUILTIN_FOLDER = Path(__file__).parent / "builtin"
SENTENCEPIECE_SPACE = "\u2581"


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode (dropout off) with what is needed to feed it."""

    name: str
    model: Any
    tokenizer: Any
    vocabulary: Vocabulary
    pad_id: int

    @property
    def positions(self) -> int | None:
        """Longest sequence that the model has positions for, as its configuration says."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return None if limit is None else int(limit)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text without anything around it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def load_model(config: ModelConfig, lora: LoraConfig, *, seed: int) -> LoadedModel:
    """Load weights and tokenizer, with a fresh adapter if LoRA is on. Raises ModelError in one line.

    Code of a model repository is never run, and weights are read from safetensors only.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # its bars would fill the log of a daemon
    source = _source(config.name)
    device = _device(config.device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(
            source, trust_remote_code=False, use_safetensors=True, dtype=_dtype(config.dtype, device)
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"--model {config.name}: can't be loaded: {first_line}") from error
    vocabulary = vocabulary_of(tokenizer, name=config.name)
    rows = model.get_input_embeddings().weight.shape[0]
    if vocabulary.size > rows:
        raise ModelError(f"--model {config.name}: its tokenizer has {vocabulary.size} ids, its embedding {rows} rows")
    model.to(device)
    if lora.enabled:
        model = _with_adapter(model, lora, seed)
    model.eval()
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else vocabulary.eos_token_ids[0]
    return LoadedModel(config.name, model, tokenizer, vocabulary, int(pad_id))


def render_prompt(loaded: LoadedModel, prompt: str, *, system: str = "", raw: bool = False) -> tuple[int, ...]:
    """Token ids of a task's prompt.

    Through the chat template where there is one; for a base model as plain text, in a dialogue if there is a
    ``system`` text. ``raw`` gives every model the prompt as it is.
    """
    tokenizer = loaded.tokenizer
    if raw or (tokenizer.chat_template is None and not system):
        return tuple(tokenizer.encode(prompt))
    if tokenizer.chat_template is None:
        return tuple(tokenizer.encode(f"{system}\n\nUser: {prompt}\nAssistant:"))
    # The template writes the special tokens itself; adding them again would double the first one.
    return tuple(tokenizer.encode(_through_template(tokenizer, prompt, system), add_special_tokens=False))


def _through_template(tokenizer: Any, prompt: str, system: str) -> str:
    user = {"role": "user", "content": prompt}
    if system:
        try:
            return _apply(tokenizer, [{"role": "system", "content": system}, user])
        except TemplateError:  # some families have no system role, and their templates say so by raising
            user = {"role": "user", "content": f"{system}\n\n{prompt}"}
    return _apply(tokenizer, [user])


def _apply(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return text


def vocabulary_of(tokenizer: Any, *, name: str) -> Vocabulary:
    """Bytes of every token, by the tokenizer's own decoder. Raises ModelError for an unknown kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"--model {name}: its tokenizer has no fast version (tokenizer.json), which is needed")
    spelled = json.loads(backend.to_str())
    added = {entry["id"]: entry for entry in spelled["added_tokens"]}
    to_bytes = _token_reader(spelled.get("decoder"), name)
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    special = set(range(len(table))) - set(vocabulary.values())  # holes stand for nothing
    for token, token_id in vocabulary.items():
        if token_id in added:
            table[token_id] = token.encode()
            if added[token_id]["special"]:
                special.add(token_id)
        else:
            table[token_id] = to_bytes(token)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"--model {name}: its tokenizer has no end-of-sequence token")
    return Vocabulary(
        token_bytes=tuple(b"" if token_id in special else token for token_id, token in enumerate(table)),
        special_ids=frozenset(special),
        eos_token_ids=(int(tokenizer.eos_token_id),),
    )


def _token_reader(decoder: dict[str, Any] | None, name: str) -> Any:
    """How a token's text in the vocabulary becomes the bytes that it stands for."""
    parts = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [part["type"] for part in parts]
    if "ByteLevel" in kinds:
        stand_ins = {character: byte for byte, character in byte_level_alphabet().items()}
        return lambda token: bytes(stand_ins[character] for character in token)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentencepiece_bytes
    raise ModelError(f"--model {name}: its tokenizer decodes by {kinds or 'nothing'}, which is not supported")


def _sentencepiece_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SENTENCEPIECE_SPACE, " ").encode()


def byte_level_alphabet() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level vocabularies (as in GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _source(name: str) -> str:
    if not name.startswith(BUILTIN_PREFIX):
        return name
    folder = BUILTIN_FOLDER / name.removeprefix(BUILTIN_PREFIX)
    if not (folder / "config.json").exists():
        names = sorted(BUILTIN_PREFIX + path.parent.name for path in BUILTIN_FOLDER.glob("*/config.json"))
        raise ModelError(f"--model {name}: there is no such built-in model; there are {', '.join(names)}")
    return str(folder)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"model.device = {wanted!r}: this machine has no usable GPU; use auto or cpu")
    return torch.device(wanted)


def _dtype(wanted: str, device: torch.device) -> torch.dtype:
    if wanted == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if wanted == "bfloat16" else torch.float32


def _with_adapter(model: Any, lora: LoraConfig, seed: int) -> Any:
    """A fresh adapter, the same for the same seed; never merged into the base weights."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    torch.manual_seed(seed)
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    peft_config = PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft divides it by the rank: any number will do
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            # peft asks transformers for a property by its old name.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            return get_peft_model(model, peft_config)
    except ValueError as error:
        raise ModelError(f"lora.targets = {lora.targets!r}: {str(error).splitlines()[0]}") from error
