"""From TOML to a checked section of settings; a mistake is one line that names the key, the value and what is allowed.

``node.toml`` and ``--set`` (``config.py``) and ``run.toml`` (``manifest.py``) are read with it.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Tag, ValidationError, field_validator

from ftis_node.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


class Section(BaseModel):
    """A part of a configuration file: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: Any) -> Any:
        if isinstance(value, bool):  # no section has a switch so far, and Python would take true for 1
            raise ValueError("must be a number or text, not true or false")
        return value


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; every failure names the file."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_section(model: type[S], data: dict[str, Any], *, source: str) -> S:
    """Validate ``data`` as ``model``; the first mistake becomes a one-line ConfigError."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error, model)}") from error


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set what ``--set section.key=value`` says. Raises ConfigError."""
    key, separator, text = override.partition("=")
    path = key.strip().split(".")
    if not separator or len(path) != 2 or not all(path):
        raise ConfigError(f"--set {override}: must look like section.key=value, for example training.groups_per_step=8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    section = data.setdefault(path[0], {})
    if not isinstance(section, dict):
        raise ConfigError(f"--set {override}: {path[0]} is not a section")
    section[path[1]] = value


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    details = error.errors()
    first = details[0]
    location = _in_the_file([str(part) for part in first["loc"]], model)
    key = ".".join(location)
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = _keys_at(model, location[:-1])
        close = difflib.get_close_matches(location[-1], allowed, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        text = f"unknown key {key!r}: {hint}allowed here: {', '.join(allowed)}"
    else:
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        shown = "" if isinstance(first["input"], dict) or not key else f" = {_short(first['input'])}"
        text = f"{key}{shown}: {message}" if key else message
    return text + (f" (and {len(details) - 1} more)" if len(details) > 1 else "")


def _in_the_file(location: list[str], model: type[BaseModel]) -> list[str]:
    """The location without the tags of unions, which stand in no file."""
    tags = {
        (name, tag.tag)
        for name, field in model.model_fields.items()
        for choice in get_args(field.annotation)
        for tag in getattr(choice, "__metadata__", ())
        if isinstance(tag, Tag)
    }
    return location[:1] + location[2:] if tuple(location[:2]) in tags else location


def _keys_at(model: type[BaseModel], location: list[str]) -> list[str]:
    """The keys that the model allows at a location, as far as its types say."""
    fields: Any = model.model_fields
    for part in location:
        if part in fields:
            annotation = fields[part].annotation
            inner = getattr(annotation, "model_fields", None) or getattr(annotation, "__dataclass_fields__", None)
            if inner is not None:
                fields = inner
                continue
            for argument in getattr(annotation, "__args__", ()):
                if hasattr(argument, "model_fields"):
                    fields = argument.model_fields
    return sorted(fields)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
