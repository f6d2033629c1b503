"""Study 7: peers' samples that are some rounds old when they arrive."""

from __future__ import annotations

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR, pair_alone, pair_with

AGES = (1, 2, 4, 8)


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.other
    return [
        pair_alone(setting, seeds),
        pair_with(setting, "f-tis", seeds),
        *(
            Planned(
                setting.simulation(f"stale-{age}", PAIR, staleness=age, caps={"max_age_rounds": 2 * max(AGES)}),
                seeds,
            )
            for age in AGES
        ),
    ]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.other)
    alone = archive.first("pair-alone", seeds)
    runs = {"age 0": archive.first("pair-f-tis", seeds)} | {f"age {age}": archive[f"stale-{age}"] for age in AGES}
    rows = []
    for party in PAIR:
        for name, each in {"alone": alone, **runs}.items():
            values = each.median_divergence(party)
            rows.append(
                (
                    party, name, interval(each.end(party)).in_points(),
                    paired(each.end(party), alone.end(party)).in_points(signed=True) if name != "alone" else "",
                    interval(each.mean_over_rounds(party)).in_points(),
                    interval(values).plain() if values else "",
                )
            )  # fmt: skip
    heading = ("party", "samples", "at the end", "minus alone", "mean over rounds", "k3 of A < 0, median")
    panels = tuple(learning_curves(f"{party} model", party, {"alone": alone, **runs}) for party in PAIR)
    return Report((Table("Accuracy in points.", heading, tuple(rows)),), panels)
