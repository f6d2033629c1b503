"""What tiny models are trained on ("in"), and what they are evaluated on too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ftis_node.simulation.specification import EvaluationSet

TASKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "in": ("addition", {"terms": 3, "largest": 21}),
    "more-terms": ("addition", {"terms": 4, "largest": 19}),
    "larger-numbers": ("addition", {"terms": 3, "smallest": 10, "largest": 39}),
    "other-operation": ("arithmetic", {"terms": 3, "largest": 39, "operations": "-"}),
}
"""Tasks and their parameters. Each has at least 2,000 test items."""


def evaluation_sets(items: int, between: Mapping[str, int] | None = None) -> tuple[EvaluationSet, ...]:
    """Test items of every kind; at most ``items`` of each, fewer ``between`` the start and the end, by distribution."""
    return tuple(_set(name, "in" if name == "in" else "out", items, between or {}) for name in TASKS)


def _set(name: str, distribution: Literal["in", "out"], items: int, between: Mapping[str, int]) -> EvaluationSet:
    task, parameters = TASKS[name]
    return EvaluationSet(
        name=name, distribution=distribution, task=f"{task}:test", parameters=parameters, items=items,
        items_between=between.get(distribution),
    )  # fmt: skip
