"""Study 12: a start that is right in one of fifty samples: alone, with a strong peer, and among its like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts.studies.guidance import GUIDED, TEACHING
from scripts.studies.how_many import first_reached
from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting

PARTY = "beginner"
STRONG = {PARTY: PARTY, "large": "large"}
LIKE = {PARTY: PARTY, "second": PARTY, "third": PARTY, "fourth": PARTY}
HALF = 0.5
ARMS: Mapping[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "alone": ({PARTY: PARTY}, {"collaboration": "alone", **TEACHING}),
    "with a strong peer": (STRONG, TEACHING),
    "with a strong peer, guided": (STRONG, GUIDED),
    "with three of its kind": (LIKE, TEACHING),
    "with three of its kind, guided": (LIKE, GUIDED),
}


def _name(arm: str) -> str:
    return f"beginner-{arm.replace(' ', '-').replace(',', '')}"


def simulations(setting: Setting) -> list[Planned]:
    inside = tuple(wanted for wanted in setting.evaluations if wanted.distribution == "in")
    return [
        Planned(
            setting.simulation(_name(arm), parties, evaluations=inside, eval_every=2 * setting.eval_every, **fields),
            setting.seeds.other,
        )
        for arm, (parties, fields) in ARMS.items()
    ]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.other)
    runs = {arm: archive.first(_name(arm), seeds) for arm in ARMS}
    rows = []
    for arm, each in runs.items():
        reached = [first_reached(result, PARTY, each.sets("in"), HALF) for result in each.results]
        found = [rounds for rounds in reached if rounds is not None]
        tokens = each.of_rounds(PARTY, lambda line: float(line.generated_tokens))
        rows.append(
            (
                arm, interval(each.start(PARTY)).in_points(), interval(each.end(PARTY)).in_points(),
                "" if arm == "alone" else paired(each.end(PARTY), runs["alone"].end(PARTY)).in_points(signed=True),
                f"{len(found)} of {len(reached)}", interval(found).plain(1) if found else "",
                f"{interval(tokens).mean:,.0f}",
            )
        )  # fmt: skip
    heading = ("beginner", "at the start", "at the end", "minus alone", "seeds that reach 50", "rounds until 50",
               "own tokens a round")  # fmt: skip
    curves = learning_curves("beginner", PARTY, runs)
    return Report((Table("Accuracy in distribution, in points.", heading, tuple(rows)),), (curves,))
