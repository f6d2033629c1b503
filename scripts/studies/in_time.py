"""Study 11: one, two, four and eight parties that never wait; simulated time and own tokens until a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ftis_node.simulation.pace import Costs
from ftis_node.simulation.specification import SimulationSpec
from scripts.studies.intervals import interval, paired
from scripts.studies.report import Curve, Panel, Report, Table
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting
from scripts.studies.timelines import Axis, Point, accuracy_at, at_other_costs, by_time, by_tokens, reached, timeline

KINDS = ("small", "large", "small-b", "large-b")
SWARMS: Mapping[int, Mapping[str, str]] = {
    2: {kind: kind for kind in KINDS[:2]},
    4: {kind: kind for kind in KINDS},
    8: {kind: kind for kind in KINDS} | {f"{kind}-again": kind for kind in KINDS},
}
"""Parties and their models. Who is there again has prompts and a seed of its own."""

MEASURED = ("small", "large")
RATIOS = (1.0, 4.0, 10.0)
MIDDLE = 4.0
SLOWER = {"small-b": 10.0, "large-b": 10.0}
FLOOR = 0.25
EVALUATIONS = 24
"""In the time of alone's rounds."""

SHARES = (0.25, 0.5, 0.75)
"""Of alone's time: when a party is compared with it."""

TEACHING = 0.6
"""About the share of groups that teach: what training costs, for the length of a run."""

LONGEST: Mapping[int, float] = {2: 0.75, 4: 0.75, 8: 0.5}
"""Of alone's time, by the number of parties: eight take the most of the machine."""

WEEK = 7 * 86_400
"""Samples live as long as any run takes. All prompts are of one window, so that they don't depend on costs."""

QUOTA = 10**6


@dataclass(frozen=True)
class Swarm:
    """A simulation and how it is told of: ``slower`` are the factors of parties that are not as fast as the others."""

    name: str
    parties: Mapping[str, str]
    ratio: float
    label: str
    slower: Mapping[str, float]

    def costs(self, party: str) -> Costs:
        factor = self.slower.get(party, 1.0)
        return Costs(generation=self.ratio * factor, training=factor)


def swarms() -> list[Swarm]:
    found = [
        Swarm(f"in-time-{count}-at-{ratio:g}", parties, ratio, str(count), {})
        for ratio in RATIOS
        for count, parties in SWARMS.items()
    ]
    return [*found, Swarm(f"in-time-4-uneven-at-{MIDDLE:g}", SWARMS[4], MIDDLE, "4, two 10 times slower", SLOWER)]


def span(setting: Setting, ratio: float) -> float:
    """Simulated seconds in which a party alone takes about all rounds of the setting."""
    return setting.rounds * setting.groups_per_step * setting.group_size * (ratio + TEACHING)


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.claim
    alone = setting.simulation(
        "in-time-alone", SWARMS[4], collaboration="alone", training={"places": "informative"},
        eval_every=max(1, 2 * setting.rounds // EVALUATIONS),
        costs={kind: Costs(generation=MIDDLE) for kind in KINDS}, **_common(setting),
    )  # fmt: skip
    return [Planned(alone, seeds), *(Planned(_simulation(setting, swarm), seeds) for swarm in swarms())]


def _simulation(setting: Setting, swarm: Swarm) -> SimulationSpec:
    alone = span(setting, swarm.ratio)
    return setting.simulation(
        swarm.name, swarm.parties, costs={party: swarm.costs(party) for party in swarm.parties},
        training={"min_own_share": FLOOR, "places": "informative"}, rounds=100 * setting.rounds,
        seconds=LONGEST[len(swarm.parties)] * alone, eval_seconds=alone / EVALUATIONS, **_common(setting),
    )  # fmt: skip


def _common(setting: Setting) -> dict[str, Any]:
    inside = tuple(
        wanted.model_copy(update={"items": wanted.items_between or wanted.items, "items_between": None})
        for wanted in setting.evaluations
        if wanted.distribution == "in"
    )
    run = {
        "tasks": setting.tasks, "group_size": setting.group_size,
        "limits": {**setting.limits, "max_age_seconds": WEEK},
        "assignment": {"window_seconds": WEEK, "quota": QUOTA},
    }  # fmt: skip
    return {"pace": "costs", "evaluations": inside, "run": run}


@dataclass(frozen=True)
class Compared:
    """One party's points and those of its model alone at the same costs, by seed."""

    swarm: Swarm
    party: str
    seconds: float
    """Of alone, about."""

    points: tuple[list[Point], ...]
    alone: tuple[list[Point], ...]

    def until(self, target: float, axis: Axis) -> tuple[list[float | None], list[float | None]]:
        return [reached(p, target, axis) for p in self.points], [reached(p, target, axis) for p in self.alone]

    def minus_alone(self, share: float) -> str:
        """In points, at this share of alone's time; nothing behind the end of the run."""
        if share > LONGEST[len(self.swarm.parties)]:
            return ""
        at = share * self.seconds
        ours, theirs = ([accuracy_at(p, at) for p in side] for side in (self.points, self.alone))
        return paired(ours, theirs).in_points(signed=True)


def compare(setting: Setting, archive: Archive, swarm: Swarm, party: str) -> Compared:
    seeds = len(setting.seeds.claim)
    runs, alone = archive.first(swarm.name, seeds), archive.first("in-time-alone", seeds)
    (wanted,) = runs.sets("in")
    kind = swarm.parties[party]
    return Compared(
        swarm,
        party,
        span(setting, swarm.ratio),
        tuple(timeline(result, party, wanted) for result in runs.results),
        tuple(
            at_other_costs(timeline(result, kind, wanted), result, kind, swarm.costs(party)) for result in alone.results
        ),
    )


def report(setting: Setting, archive: Archive) -> Report:
    measured = [compare(setting, archive, swarm, party) for party in MEASURED for swarm in swarms()]
    targets = " and ".join(f"{100 * setting.targets[party]:.0f} ({party})" for party in MEASURED)
    reaching = Table(
        f"Until {targets} points in distribution, and accuracy minus alone's after the same simulated time, of which"
        f" the whole is about {setting.rounds} rounds alone. A sequence that is trained costs one second.",
        (
            "party", "generation : training", "parties", "seeds that reach it", "simulated time", "of alone's",
            "own tokens", "of alone's", "minus alone at a quarter", "at half", "at three quarters",
        ),
        tuple(_row(each, setting.targets[each.party]) for each in measured),
    )  # fmt: skip
    everybody = Table(
        f"Every party, {MIDDLE:g} : 1: accuracy minus its model's alone after the same simulated time.",
        ("party", "parties", "own rounds", "at a quarter", "at half", "at three quarters"),
        tuple(
            (
                party, swarm.label, f"{fmean(_rounds(archive[swarm.name], party)):.0f}",
                *map(each.minus_alone, SHARES),
            )
            for swarm in swarms()
            if swarm.ratio == MIDDLE
            for party in swarm.parties
            for each in [compare(setting, archive, swarm, party)]
        ),
    )  # fmt: skip
    shown = [each for each in measured if each.swarm.ratio == MIDDLE]
    panels = [
        _panel(party, label, [each for each in shown if each.party == party], axis)
        for label, axis in (("simulated seconds", by_time), ("own generated tokens", by_tokens))
        for party in MEASURED
    ]
    return Report((reaching, everybody), tuple(panels))


def _rounds(runs: Runs, party: str) -> list[int]:
    return [sum(line.party == party for line in result.rounds) for result in runs.results]


def _row(each: Compared, target: float) -> tuple[str, ...]:
    cells = [each.party, f"{each.swarm.ratio:g} : 1", each.swarm.label]
    count = len(each.points)
    for axis in (by_time, by_tokens):
        ours, theirs = each.until(target, axis)
        found = [value for value in ours if value is not None]
        # Where alone starts above the target there is nothing to compare with.
        ratios = [a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b]
        if axis is by_time:
            cells.append(f"{len(found)} of {count}")
        cells += [
            f"{interval(found).mean:,.0f}" if found else "",
            interval(ratios).plain() if ratios else "",
        ]
    return (*cells, *map(each.minus_alone, SHARES))


def _panel(party: str, label: str, compared: list[Compared], axis: Axis) -> Panel:
    curves = [_curve("alone", compared[0].alone, axis)]
    curves += [_curve(f"{each.swarm.label} parties", each.points, axis) for each in compared]
    return Panel(f"{party} model, {MIDDLE:g} : 1", label, "accuracy in distribution", tuple(curves))


def _curve(label: str, by_seed: tuple[list[Point], ...], axis: Axis) -> Curve:
    together = list(zip(*by_seed, strict=True))
    return Curve(
        label,
        [fmean(axis(point) for point in points) for points in together],
        [fmean(point.accuracy for point in points) for points in together],
    )
