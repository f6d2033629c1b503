"""Writing ``node.toml``: what is set is live, every default is shown as a comment with its meaning."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

from pydantic import BaseModel

from ftis_node.config import FtisConfig, NodeConfig

_HEADER = """\
# This party's own configuration. Lines that are commented out show the defaults.
# What everybody in the run has in common is in run.toml.
"""


def node_toml(config: NodeConfig) -> str:
    """The configuration as a commented file that ``load_node_config`` reads back to the same values."""
    parts = [_HEADER]
    for name in NodeConfig.model_fields:
        section = getattr(config, name)
        parts.append(f"\n[{name}]\n" + "".join(_line(*entry) for entry in _entries(section)))
    return "".join(parts)


def _entries(section: BaseModel | FtisConfig) -> list[tuple[str, Any, Any, str]]:
    """(key, value, default, description) of every field."""
    if isinstance(section, BaseModel):
        fields = type(section).model_fields
        return [
            (key, getattr(section, key), info.get_default(call_default_factory=True), info.description or "")
            for key, info in fields.items()
        ]
    entries = []
    for field in dataclasses.fields(section):
        info: Any = field.default
        value = getattr(section, field.name)
        default = getattr(FtisConfig(), field.name) if section.kl_estimator == "k3" else info.default
        entries.append((field.name, value, default, info.description or ""))
    return entries


def _line(key: str, value: Any, default: Any, description: str) -> str:
    if value is None:
        return f"# {key} =  # (not set) {description}\n"
    comment = "# " if value == default else ""
    return f"{comment}{key} = {toml_value(value)}  # {description}\n"


def toml_value(value: Any) -> str:
    """A value as it stands in a file, on one line."""
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if isinstance(value, tuple):
        return json.dumps(list(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
