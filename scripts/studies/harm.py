"""Study 8: one of four parties harms. What it costs the others, and which defence keeps it small."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scripts.studies.how_many import FOUR
from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting

HOSTILE = "large-b"
MEASURED = ("small", "large")
HARMS: Mapping[str, Mapping[str, Any]] = {
    "noise": {"harm": "noise"},
    "wrong": {"harm": "wrong"},
    "rambling": {"harm": "rambling"},
    "copies": {"harm": "copies"},
    # It also claims to have sampled what it publishes with next to no probability, which k3 doesn't see.
    "rambling-claim": {"harm": "rambling", "harm_logprob": -30.0},
}
NO_CAPS = {"author_share": 1.0, "neighbour_share": 1.0, "range_share": 1.0, "newcomer_share": 1.0}
WEIGHTED = {"peer_weighting": "usefulness", "agreement_every": 2}
NO_BOUND = "no claim bound"
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "no filter": {"ftis": {"method": "tis"}},
    "no share cap": {"caps": NO_CAPS},
    "no score": {"scores": "off"},
    "auto threshold": {"ftis": {"kl_threshold": "auto"}},
    "usefulness": {"training": WEIGHTED},
    NO_BOUND: {"training": {"claim_bound": math.inf}},
}


def _defences(harm: str) -> Mapping[str, Mapping[str, Any]]:
    """A true claim is within the bound whatever is sampled: without it the others' runs would be the same."""
    return {name: fields for name, fields in DEFENCES.items() if name != NO_BOUND or "harm_logprob" in HARMS[harm]}


def _name(harm: str, defence: str) -> str:
    return f"harm-{harm}-{defence.replace(' ', '-')}"


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.other
    honest = [
        Planned(setting.simulation("four-f-tis", FOUR), seeds),
        Planned(setting.simulation("four-alone", FOUR, collaboration="alone", **setting.evaluated_inside), seeds),
    ]
    return honest + [
        Planned(
            setting.simulation(
                _name(harm, defence), FOUR, harm={HOSTILE: hostile}, **fields, **setting.evaluated_inside
            ),
            seeds,
        )
        for harm, hostile in HARMS.items()
        for defence, fields in _defences(harm).items()
    ]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.other)
    honest, alone = archive.first("four-f-tis", seeds), archive["four-alone"]
    rows = [("none", "all", *_cells_of(honest, alone, honest)), ("alone", "", *_cells_of(alone, alone, honest))]
    for harm in HARMS:
        for defence in _defences(harm):
            rows.append((harm, defence, *_cells_of(archive[_name(harm, defence)], alone, honest)))
    heading = (
        "harm",
        "defence",
        *(f"{party}: {what}" for party in MEASURED for what in ("end", "minus alone", "minus honest")),
    )
    panels = tuple(
        learning_curves(
            f"{party} model, {harm}", party,
            {"honest": honest, "alone": alone, **{d: archive[_name(harm, d)] for d in _defences(harm)}},
        )
        for harm in HARMS
        for party in MEASURED
    )  # fmt: skip
    return Report((Table("Accuracy in distribution at the end, in points.", heading, tuple(rows)),), panels)


def _cells_of(runs: Runs, alone: Runs, honest: Runs) -> list[str]:
    cells = []
    for party in MEASURED:
        end = runs.end(party)
        cells += [
            interval(end).in_points(),
            "" if runs is alone else paired(end, alone.end(party)).in_points(signed=True),
            "" if runs is honest else paired(end, honest.end(party)).in_points(signed=True),
        ]
    return cells
