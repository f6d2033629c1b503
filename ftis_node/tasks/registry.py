"""Tasks by name, and the check that a manifest's task is the one that is here."""

from __future__ import annotations

from collections.abc import Mapping

from ftis_node.errors import ConfigError
from ftis_node.manifest import TaskSpec
from ftis_node.tasks.addition import Addition
from ftis_node.tasks.task import Split, Task

TASK_NAMES = ("addition",)
MOST_SUMS = 2_000_000

Parameters = Mapping[str, bool | int | float | str]


def build_task(name: str, parameters: Parameters, split: Split = "train") -> Task:
    """Raises ConfigError for a task or parameter that doesn't exist, naming what is allowed."""
    if name != "addition":
        raise ConfigError(f"task {name!r}: there is no such task; allowed: {', '.join(TASK_NAMES)}")
    unknown = sorted(set(parameters) - {"terms", "smallest", "largest"})
    if unknown:
        raise ConfigError(f"task addition: unknown parameter {unknown[0]!r}; allowed: largest, smallest, terms")
    terms = _whole_number(parameters, "terms", default=3, low=2, high=8)
    largest = _whole_number(parameters, "largest", default=19, low=1, high=999)
    smallest = _whole_number(parameters, "smallest", default=0, low=0, high=largest - 1)
    sums = (largest - smallest + 1) ** terms
    if sums > MOST_SUMS:
        raise ConfigError(
            f"task addition: {terms} terms from {smallest} to {largest} give {sums} items; at most {MOST_SUMS}"
            " are allowed"
        )
    return Addition(terms=terms, smallest=smallest, largest=largest, split=split)


def check_task(spec: TaskSpec) -> Task:
    """The task that a manifest names. Raises ConfigError when this node's copy isn't the same data."""
    task = build_task(spec.name, spec.parameters)
    if task.size != spec.size or task.data_hash != spec.data_hash:
        raise ConfigError(
            f"task {spec.name}: the manifest has size = {spec.size}, data_hash = {spec.data_hash!r}; this node's copy"
            f" has size = {task.size}, data_hash = {task.data_hash!r}"
        )
    return task


def _whole_number(parameters: Parameters, key: str, *, default: int, low: int, high: int) -> int:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"task addition: {key} = {value!r}; allowed are whole numbers from {low} to {high}")
    return value
