"""Study 9: where a difference between ``f-tis`` and ``alone`` comes from.

Alone with fewer own groups a step shows what the own samples are worth that a party of several doesn't generate. Twins
begin with the same weights and train on the same groups, so they stay one model: they show what is lost on the way.
Siblings are of the same size and schooling, from other seeds: they show what a differing model costs by itself.
"""

from __future__ import annotations

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR, pair_alone, pair_with

SHARES = {"half": 2, "a quarter": 4}
"""Of the own groups that ``alone`` has: those of a party of two, and of four."""


def _alone(share: str) -> str:
    return f"pair-alone-{share.replace(' ', '-')}"


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.claim
    fewer = [
        setting.simulation(
            _alone(share), PAIR, collaboration="alone", training={"groups_per_step": setting.groups_per_step // parties}
        )
        for share, parties in SHARES.items()
    ]
    siblings = [setting.simulation(f"siblings-{model}", {model: model, f"{model}-b": f"{model}-b"}) for model in PAIR]
    twins = [setting.simulation(f"twins-{model}", {model: model, f"{model}-twin": model}) for model in PAIR]
    return [
        pair_alone(setting, seeds),
        pair_with(setting, "f-tis", seeds),
        *(Planned(spec, seeds) for spec in [*fewer, *twins, *siblings]),
    ]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.claim)
    rows, panels = [], []
    for party in PAIR:
        runs = {
            "alone": archive.first("pair-alone", seeds),
            **{f"alone, {share} of the own groups": archive[_alone(share)] for share in SHARES},
            "f-tis with the other": archive.first("pair-f-tis", seeds),
            "f-tis with a sibling": archive[f"siblings-{party}"],
            "f-tis with a twin": archive[f"twins-{party}"],
        }
        half = runs["alone, half of the own groups"]
        rows += [_row(party, name, each, runs["alone"], half) for name, each in runs.items()]
        panels.append(learning_curves(f"{party} model", party, runs))
    heading = (
        "party", "method", "own tokens a round", "at the end", "minus alone", "minus alone with half",
        "mean over rounds", "out, at the end", "minus alone", "minus alone with half",
    )  # fmt: skip
    return Report((Table("Accuracy in points.", heading, tuple(rows)),), tuple(panels))


def _row(party: str, name: str, runs: Runs, alone: Runs, half: Runs) -> tuple[str, ...]:
    end, out = runs.end(party), runs.end(party, "out")
    tokens = runs.of_rounds(party, lambda line: float(line.generated_tokens))
    return (
        party, name, f"{interval(tokens).mean:,.0f}", interval(end).in_points(),
        "" if runs is alone else paired(end, alone.end(party)).in_points(signed=True),
        "" if runs is half else paired(end, half.end(party)).in_points(signed=True),
        interval(runs.mean_over_rounds(party)).in_points(), interval(out).in_points(),
        "" if runs is alone else paired(out, alone.end(party, "out")).in_points(signed=True),
        "" if runs is half else paired(out, half.end(party, "out")).in_points(signed=True),
    )  # fmt: skip
