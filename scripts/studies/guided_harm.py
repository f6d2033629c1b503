"""Study 13: what a party that harms costs those that let others guide them."""

from __future__ import annotations

from scripts.studies.guidance import GUIDED
from scripts.studies.harm import HARMS, HOSTILE, MEASURED
from scripts.studies.how_many import FOUR
from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting

ARMS = {"off": {}, "guided": GUIDED}


def _name(harm: str, arm: str) -> str:
    return f"guided-harm-{harm}-{arm}"


def simulations(setting: Setting) -> list[Planned]:
    return [
        Planned(
            setting.simulation(
                _name(harm, arm), FOUR, harm={HOSTILE: HARMS[harm]} if harm != "none" else None, **fields,
                **setting.evaluated_inside,
            ),
            setting.seeds.other,
        )
        for harm in ("none", *HARMS)
        for arm, fields in ARMS.items()
    ]  # fmt: skip


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.other)
    rows = []
    for party in MEASURED:
        for harm in ("none", *HARMS):
            cost = {}
            for arm in ARMS:
                end = archive.first(_name(harm, arm), seeds).end(party)
                honest = archive.first(_name("none", arm), seeds).end(party)
                cost[arm] = [a - b for a, b in zip(end, honest, strict=True)]
                cells = (f"{party}: {harm}", arm, interval(end).in_points())
                lost = "" if harm == "none" else interval(cost[arm]).in_points(signed=True)
                more = "" if harm == "none" or arm == "off" else paired(cost[arm], cost["off"]).in_points(signed=True)
                rows.append((*cells, lost, more))
    heading = ("party: harm", "guidance", "at the end", "minus honest", "minus honest, against off")
    return Report((Table("Accuracy in distribution, in points.", heading, tuple(rows)),))
