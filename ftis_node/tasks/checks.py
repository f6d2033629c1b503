"""Whether an answer is right. Runs in the worker process: what it calls may hang, raise or eat memory."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ftis_node.tasks.expressions import same_answer

GYM_ENTRIES = 1_000_000
"""Some generators lay out a plan for every entry when they are made."""

Scalar = bool | int | float | str
GymParameter = Scalar | tuple[Scalar, ...]


class _Check(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MathCheck(_Check):
    """Whether two answers are the same value, word or mathematical expression."""

    kind: Literal["math"] = "math"
    expected: str
    answer: str


class GymCheck(_Check):
    """What reasoning-gym's own scorer says of an answer to one of its entries."""

    kind: Literal["gym"] = "gym"
    generator: str
    parameters: dict[str, GymParameter]
    seed: int
    entry: int
    answer: str


Check = Annotated[MathCheck | GymCheck, Field(discriminator="kind")]
CHECKS: TypeAdapter[MathCheck | GymCheck] = TypeAdapter(Check)


def prepare(check: MathCheck | GymCheck) -> None:
    """What is the same for every answer, so that it isn't counted against one."""
    if isinstance(check, GymCheck):
        _dataset_of(check)


def is_right(check: MathCheck | GymCheck) -> bool:
    """May take for ever, and may raise anything."""
    if isinstance(check, MathCheck):
        return same_answer(check.expected, check.answer)
    dataset = _dataset_of(check)
    # Only a full score: partial credit is given for rambling too.
    return bool(dataset.score_answer(check.answer, dataset[check.entry]) == 1.0)


def _dataset_of(check: GymCheck) -> Any:
    return gym_dataset(check.generator, tuple(sorted(check.parameters.items())), check.seed)


@cache
def gym_dataset(generator: str, parameters: tuple[tuple[str, GymParameter], ...], seed: int) -> Any:
    """A reasoning-gym data set with random access to ``GYM_ENTRIES`` entries."""
    import reasoning_gym

    return reasoning_gym.create_dataset(generator, seed=seed, size=GYM_ENTRIES, **dict(parameters))
