"""Options that name a model or a task, as the commands need them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftis_node.config import ModelConfig
from ftis_node.errors import ConfigError
from ftis_node.manifest import Parameter
from ftis_node.sections import Section, parse_section

FILE_PREFIX = "jsonl:"


class _TaskParameters(Section):
    parameters: dict[str, Parameter]


def task_option(task: str, files: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A task's name and the files by task: ``jsonl:FILE`` becomes ``jsonl:NAME`` with that file."""
    known = dict(files)
    if not task.startswith(FILE_PREFIX) or task in known:
        return task, known
    file = Path(task.removeprefix(FILE_PREFIX)).expanduser()
    name = FILE_PREFIX + (re.sub(r"[^a-z0-9_.-]+", "-", file.stem.lower()).strip("-.")[:40] or "questions")
    return name, {**known, name: str(file.absolute())}


def parameters_of(texts: Sequence[str]) -> dict[str, Parameter]:
    """``KEY=VALUE`` options with TOML values; what is no TOML is text. Raises ConfigError."""
    parameters = _values_of(texts, "--parameter", "max_terms=3")
    return parse_section(_TaskParameters, {"parameters": parameters}, source="--parameter").parameters


def _values_of(texts: Sequence[str], option: str, example: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{option} {text}: must look like KEY=VALUE, for example {example}")
        try:
            values[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = value.strip()
    return values


def model_options(
    name: str, *, revision: str | None, dtype: str | None, device: str | None, chat_template: Sequence[str] = ()
) -> ModelConfig:
    """``chat_template`` are KEY=VALUE. Raises ConfigError, which names the option's key."""
    given = {
        "name": name, "revision": revision, "dtype": dtype, "device": device,
        "chat_template_kwargs": _values_of(chat_template, "--chat-template", "enable_thinking=false"),
    }  # fmt: skip
    return parse_section(
        ModelConfig, {key: value for key, value in given.items() if value is not None}, source="options"
    )
