"""Study 2: models that differ in size, in expertise, and in what of them is trained."""

from __future__ import annotations

from collections.abc import Mapping

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR, pair_alone, pair_with

EXPERTISE = {"adder": "adder", "subtracter": "subtracter"}
TRAINABLE = {"full": "large", "lora": "large-lora"}
PAIRS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "size": ("pair", PAIR), "expertise": ("expertise", EXPERTISE), "trainable": ("trainable", TRAINABLE),
}  # fmt: skip


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.claim
    plans = [pair_alone(setting, seeds), pair_with(setting, "f-tis", seeds)]
    for name, parties, skills in (("expertise", EXPERTISE, True), ("trainable", TRAINABLE, False)):
        alone = setting.simulation(f"{name}-alone", parties, skills=skills, collaboration="alone")
        together = setting.simulation(f"{name}-f-tis", parties, skills=skills)
        plans += [Planned(alone, seeds), Planned(together, seeds)]
    for prefix, pair in PAIRS.values():
        weighted = setting.simulation(
            f"{prefix}-usefulness", pair, skills=prefix == "expertise",
            training={"peer_weighting": "usefulness", "agreement_every": 2},
        )  # fmt: skip
        plans.append(Planned(weighted, seeds))
    return plans


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.claim)
    rows, panels, out_of_distribution, differences = [], [], [], []
    for kind, (prefix, parties) in PAIRS.items():
        runs = {name: archive.first(f"{prefix}-{name}", seeds) for name in ("alone", "f-tis", "usefulness")}
        for party in parties:
            alone, out_alone = runs["alone"].end(party), runs["alone"].end(party, "out")
            for name, each in runs.items():
                inside, outside = each.end(party), each.end(party, "out")
                rows.append(
                    (
                        f"{kind}: {party}", name, interval(inside).in_points(),
                        "" if name == "alone" else paired(inside, alone).in_points(signed=True),
                        interval(outside).in_points(),
                        "" if name == "alone" else paired(outside, out_alone).in_points(signed=True),
                    )
                )  # fmt: skip
            out_of_distribution.append([a - b for a, b in zip(runs["f-tis"].end(party, "out"), out_alone, strict=True)])
            gained = paired(runs["usefulness"].end(party), runs["f-tis"].end(party))
            differences.append((f"{kind}: {party}, usefulness minus f-tis, at the end", gained.in_points(signed=True)))
            panels.append(learning_curves(f"{kind}: {party}", party, runs))
    mean = [sum(values) / len(values) for values in zip(*out_of_distribution, strict=True)]
    heading = ("pair: party", "method", "at the end", "minus alone", "out, at the end", "minus alone")
    claim = ("f-tis minus alone, out of distribution, mean over pairs", interval(mean).in_points(signed=True))
    return Report(
        (
            Table("Accuracy in points.", heading, tuple(rows)),
            Table("Paired over seeds, in points.", ("difference", "points"), (claim, *differences)),
        ),
        tuple(panels),
    )
