"""What a run asks of those who move the parties on, in lockstep or each at its own pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ftis_node.simulation.figures import EvaluationLine, RoundLine
from ftis_node.simulation.node import SimulatedNode


@dataclass(frozen=True, slots=True)
class Moment:
    """When a party is evaluated; the fields as in ``EvaluationLine``. ``at_an_end``: at the start or the end."""

    round: int
    at_an_end: bool
    time: float | None = None
    own_tokens: int | None = None


Evaluate = Callable[[SimulatedNode, Moment], list[EvaluationLine]]
"""Evaluates a party on every set, with the weights that it has now."""


class Engine(Protocol):
    """``round`` counts what ``advance`` did; ``progress`` is of the specification's rounds."""

    round: int

    @property
    def nodes(self) -> Sequence[SimulatedNode]: ...

    @property
    def done(self) -> bool: ...

    @property
    def most_rounds(self) -> int: ...

    @property
    def progress(self) -> int: ...

    def advance(self) -> Sequence[RoundLine | EvaluationLine]:
        """About one round of everybody."""
        ...

    def dump(self) -> str:
        """All that is remembered beside weights and optimizers."""
        ...

    def load(self, text: str) -> None:
        """Raises ValueError, CheckpointError."""
        ...
