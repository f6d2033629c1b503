"""What tiny models are trained on ("in"), and what they are evaluated on too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftis_node.simulation.specification import EvaluationSet

TASKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "in": ("addition", {"terms": 3, "largest": 21}),
    "more-terms": ("addition", {"terms": 4, "largest": 19}),
    "larger-numbers": ("addition", {"terms": 3, "smallest": 10, "largest": 39}),
    "other-operation": ("arithmetic", {"terms": 3, "largest": 39, "operations": "-"}),
}
"""Tasks and their parameters. Each has at least 2,000 test items."""


def evaluation_sets(items: int, between: int | None = None) -> tuple[EvaluationSet, ...]:
    """Test items of every kind; at most ``items`` of each, ``between`` the start and the end fewer."""
    return tuple(
        EvaluationSet(
            name=name, distribution="in" if name == "in" else "out", task=f"{task}:test", parameters=parameters,
            items=items, items_between=between,
        )
        for name, (task, parameters) in TASKS.items()
    )  # fmt: skip
