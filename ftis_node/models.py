"""Models with their tokenizers, ready to be fed."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from safetensors import SafetensorError

from ftis_node.config import LoraConfig, ModelConfig
from ftis_node.errors import ModelError
from ftis_node.hub import why_only_the_cache
from ftis_node.model_files import model_source
from ftis_node.model_places import find_model
from ftis_node.token_bytes import vocabulary_of
from ftis_node.vocabulary import Vocabulary


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode (dropout off) with what is needed to feed it."""

    name: str
    model: Any
    tokenizer: Any
    vocabulary: Vocabulary
    pad_id: int
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

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

    Code of a model repository is never run, and weights are read from safetensors and GGUF only. A folder with a PEFT
    adapter gives its base model with the adapter worked into a copy in memory.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # its bars would fill the log of a daemon
    device = torch_device(config.device)
    offline = why_only_the_cache() if find_model(config.name) is None else None
    try:
        tokenizer, model = _load(config, _dtype(config.dtype, device))
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if offline is not None:
            first_line = f"{offline}, it is not in the cache, and there is no such folder here"
        raise ModelError(f"--model {config.name}: can't be loaded: {first_line}") from error
    vocabulary = vocabulary_of(tokenizer, _generation_ends(model), name=config.name)
    _check_template_arguments(tokenizer, config)
    rows = model.get_input_embeddings().weight.shape[0]
    if vocabulary.size > rows:
        raise ModelError(f"--model {config.name}: its tokenizer has {vocabulary.size} ids, its embedding {rows} rows")
    model.to(device)
    _switch_off_dropout(model)
    if lora.enabled:
        model = _with_adapter(model, lora, seed)
    model.eval()
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else vocabulary.eos_token_ids[0]
    return LoadedModel(config.name, model, tokenizer, vocabulary, int(pad_id), config.chat_template_kwargs)


def _load(config: ModelConfig, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    source = model_source(config.name)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=config.revision, trust_remote_code=False)
    adapter = Path(source) / "adapter_config.json"
    if not adapter.exists():
        return tokenizer, _load_weights(source, config, dtype)
    from peft import PeftModel

    base_name = str(json.loads(adapter.read_text())["base_model_name_or_path"])
    base = _load_weights(model_source(base_name), config, dtype)
    with _peft_on_new_transformers():
        merged = PeftModel.from_pretrained(base, source).merge_and_unload()
    return tokenizer, merged.requires_grad_(True)


def _load_weights(source: str, config: ModelConfig, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM  # its annotations don't know of the pair
    model, loaded = loader.from_pretrained(
        source, revision=config.revision, trust_remote_code=False, use_safetensors=True, dtype=dtype,
        output_loading_info=True,
    )  # fmt: skip
    # transformers would fill what is missing with random numbers and only warn.
    missing = sorted({*map(str, loaded["missing_keys"]), *(str(key) for key, *_ in loaded["mismatched_keys"])})
    if missing:
        raise ModelError(
            f"--model {config.name}: {len(missing)} weights are missing in it or have another shape, the first is"
            f" {missing[0]}"
        )
    return model


def _generation_ends(model: Any) -> tuple[int, ...]:
    """End tokens of the generation configuration: chat models end a turn with one that their tokenizer may not name."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


def _switch_off_dropout(model: Any) -> None:
    """Also for the time when the model is in training mode, which gradient checkpointing needs."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


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
    return tuple(tokenizer.encode(_through_template(loaded, prompt, system), add_special_tokens=False))


def _through_template(loaded: LoadedModel, prompt: str, system: str) -> str:
    tokenizer, arguments = loaded.tokenizer, loaded.chat_template_kwargs
    user = {"role": "user", "content": prompt}
    if system:
        try:
            return _apply(tokenizer, [{"role": "system", "content": system}, user], arguments)
        except TemplateError:  # some families have no system role, and their templates say so by raising
            user = {"role": "user", "content": f"{system}\n\n{prompt}"}
    return _apply(tokenizer, [user], arguments)


def _apply(tokenizer: Any, messages: list[dict[str, str]], arguments: Mapping[str, Any]) -> str:
    text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **arguments)
    return text


def _check_template_arguments(tokenizer: Any, config: ModelConfig) -> None:
    """Raises ModelError for arguments that the model's template doesn't take: it would ignore them."""
    arguments = config.chat_template_kwargs
    if not arguments:
        return
    where = f"model.chat_template_kwargs: {config.name}"
    if tokenizer.chat_template is None:
        raise ModelError(f"{where} has no chat template")
    for name in arguments:
        of_the_call = name in signature(tokenizer.apply_chat_template).parameters or name == "messages"
        if of_the_call or not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise ModelError(f"{where} has a chat template without {name!r}")
    try:
        _apply(tokenizer, [{"role": "user", "content": "?"}], arguments)
    except (TemplateError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{where} has a chat template that refuses {dict(arguments)}: {reason}") from error


def torch_device(wanted: str) -> torch.device:
    """Raises ModelError for a GPU that isn't there."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"model.device = {wanted!r}: this machine has no usable GPU; use auto or cpu")
    device = torch.device(wanted)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ModelError(
            f"model.device = {wanted!r}: this machine has {torch.cuda.device_count()} GPUs, from cuda:0 on"
        )
    return device


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
        with _peft_on_new_transformers():
            return get_peft_model(model, peft_config)
    except ValueError as error:
        raise ModelError(f"lora.targets = {lora.targets!r}: {str(error).splitlines()[0]}") from error


@contextmanager
def _peft_on_new_transformers() -> Iterator[None]:
    """peft asks transformers for a property by its old name."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield
