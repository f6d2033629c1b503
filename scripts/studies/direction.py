"""Study 4: vertical (each prompt is one party's) against horizontal (each prompt is everybody's)."""

from __future__ import annotations

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR, pair_alone, pair_with


def simulations(setting: Setting) -> list[Planned]:
    """A horizontal group holds the completions of both, so each party samples half of a vertical group's."""
    horizontal = setting.simulation("pair-horizontal", PAIR, collaboration="horizontal")
    half = horizontal.run.model_copy(update={"group_size": max(2, setting.group_size // 2)})
    horizontal = horizontal.model_copy(update={"run": half})
    seeds = setting.seeds.claim
    return [pair_alone(setting, seeds), pair_with(setting, "f-tis", seeds), Planned(horizontal, seeds)]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.claim)
    names = {"alone": "pair-alone", "vertical": "pair-f-tis", "horizontal": "pair-horizontal"}
    runs = {name: archive.first(simulation, seeds) for name, simulation in names.items()}
    rows = []
    for party in PAIR:
        for name, each in runs.items():
            rows.append(
                (
                    party, name, interval(each.end(party)).in_points(),
                    paired(each.end(party), runs["alone"].end(party)).in_points(signed=True) if name != "alone" else "",
                    interval(each.end(party, "out")).in_points(),
                    paired(each.end(party, "out"), runs["alone"].end(party, "out")).in_points(signed=True)
                    if name != "alone" else "",
                )
            )  # fmt: skip
    heading = ("party", "collaboration", "at the end", "minus alone", "out, at the end", "minus alone")
    panels = tuple(learning_curves(f"{party} model", party, runs) for party in PAIR)
    return Report((Table("Accuracy in points.", heading, tuple(rows)),), panels)
