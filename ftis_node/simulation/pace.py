"""What a specification may say of parties that each go at their own pace. No torch here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ftis_node.filling import Places
from ftis_node.sections import Section

if TYPE_CHECKING:
    from ftis_node.simulation.specification import SimulatedParty, SimulationSpec

Pace = Literal["lockstep", "costs"]

OF_LOCKSTEP = ("staleness", "round_seconds")
OF_COSTS = ("seconds", "eval_seconds", "latency_seconds")


class Costs(Section):
    """Simulated seconds."""

    generation: float = Field(default=4.0, gt=0, allow_inf_nan=False, description="per sequence that is sampled")
    training: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="per sequence of a step that goes forward and backward"
    )


def places_of(spec: SimulationSpec, party: SimulatedParty) -> Places:
    """Of each of its steps; all are its own where everybody is alone."""
    training = party.node.training
    alone = spec.collaboration == "alone"
    return Places(training.groups_per_step, training.groups_per_step if alone else training.own_groups)


def check_pace(spec: SimulationSpec) -> None:
    """Raises ValueError with one line."""
    foreign = OF_LOCKSTEP if spec.pace == "costs" else OF_COSTS
    for key in foreign:
        if getattr(spec, key) != type(spec).model_fields[key].default:
            raise ValueError(f"{key}: has no meaning with pace = {spec.pace!r}")
    if spec.pace == "costs":
        _check_costs(spec)
    elif any(party.costs != Costs() for party in spec.parties):
        raise ValueError("parties.costs: have no meaning with pace = 'lockstep'")


def _check_costs(spec: SimulationSpec) -> None:
    if spec.collaboration == "horizontal":
        raise ValueError("collaboration = 'horizontal': a group is of one round of all; it needs pace = 'lockstep'")
    run = spec.run
    for party in spec.parties:
        places, group_seconds = places_of(spec, party), party.costs.generation * run.group_size
        # A batch is dated when its sampling begins, as a daemon does.
        age, limit = places.own_groups * group_seconds + spec.latency_seconds, run.limits.max_age_seconds
        if spec.collaboration != "alone" and age > limit:
            raise ValueError(
                f"party {party.name!r}: its batches are {age:g} s old when they arrive, and live for"
                f" run.limits.max_age_seconds = {limit:g}"
            )
        most = math.ceil(run.assignment.window_seconds / group_seconds) + places.own_groups
        if most > run.assignment.quota:
            raise ValueError(
                f"run.assignment.quota = {run.assignment.quota}: party {party.name!r} samples up to {most} groups in a"
                f" window of {run.assignment.window_seconds} s; raise it, or make the window shorter"
            )
