"""docs/health.md documents exactly the fields that ``health --json`` prints, with their types."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftis_node.status.swarm_view import DOCUMENT_SCHEMA, HealthDocument

TEXT = (Path(__file__).parents[2] / "docs" / "health.md").read_text()
SCHEMA = HealthDocument.model_json_schema(mode="serialization")
OBJECTS: Mapping[str, Any] = {"HealthDocument": SCHEMA, **SCHEMA["$defs"]}


def type_text(field: Mapping[str, Any]) -> str:
    """A field's type as the tables write it."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(type_text(choice) for choice in field["anyOf"])
    if "enum" in field:
        return " / ".join(f'"{value}"' for value in field["enum"])
    if field["type"] == "array":
        return f"list of {type_text(field['items'])}"
    if field["type"] == "object":
        return f"object of {type_text(field['additionalProperties'])}"
    return str(field["type"])


def documented(name: str) -> dict[str, str]:
    """Field and type in the table under the heading of an object."""
    _, heading, section = TEXT.partition(f"\n### {name}\n")
    assert heading, f"docs/health.md has no section {name}"
    section = section.split("\n## ")[0].split("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", section, flags=re.MULTILINE)
    assert all(meaning.strip() for _, _, meaning in rows)
    return {field: kind.strip() for field, kind, _ in rows}


@pytest.mark.parametrize("name", OBJECTS)
def test_every_field_is_documented_and_no_other(name: str) -> None:
    assert documented(name) == {field: type_text(kind) for field, kind in OBJECTS[name]["properties"].items()}


def test_the_version_is_the_documented_one() -> None:
    assert f"`schema_version` is {DOCUMENT_SCHEMA}" in TEXT
