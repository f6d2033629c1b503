"""Study 1: which part does what. A small and a large model together, with each method and alone."""

from __future__ import annotations

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting

METHODS = ("nois", "vis", "tis", "f-nois", "f-vis", "f-tis")
PAIR = {"small": "small", "large": "large"}


def pair_alone(setting: Setting, seeds: range) -> Planned:
    """The baseline of all studies of this pair."""
    return Planned(setting.simulation("pair-alone", PAIR, collaboration="alone"), seeds)


def pair_with(setting: Setting, method: str, seeds: range) -> Planned:
    return Planned(setting.simulation(f"pair-{method}", PAIR, ftis={"method": method}), seeds)


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.headline
    return [pair_alone(setting, seeds), *(pair_with(setting, method, seeds) for method in METHODS)]


def report(setting: Setting, archive: Archive) -> Report:
    del setting
    runs = {"alone": archive["pair-alone"], **{method: archive[f"pair-{method}"] for method in METHODS}}
    panels = [learning_curves(f"{party} model", party, runs) for party in PAIR]
    panels += [learning_curves(f"{party} model", party, runs, "out") for party in PAIR]
    return Report(tables=(*(_table(runs, party) for party in PAIR), _claims(runs)), panels=tuple(panels))


def _table(runs: dict[str, Runs], party: str) -> Table:
    alone = runs["alone"]
    rows = []
    for method, each in runs.items():
        inside, mean, outside = each.end(party), each.mean_over_rounds(party), each.end(party, "out")
        difference = "" if method == "alone" else paired(inside, alone.end(party)).in_points(signed=True)
        beyond = "" if method == "alone" else paired(outside, alone.end(party, "out")).in_points(signed=True)
        rows.append(
            (
                method, interval(inside).in_points(), difference, interval(mean).in_points(),
                interval(outside).in_points(), beyond,
            )
        )  # fmt: skip
    start = interval(alone.start(party)).in_points(), interval(alone.start(party, "out")).in_points()
    return Table(
        f"The {party} model: accuracy in points (mean over seeds, 95 % interval); at the start {start[0]} in and"
        f" {start[1]} out of distribution.",
        ("method", "at the end", "minus alone", "mean over rounds", "out, at the end", "minus alone"),
        tuple(rows),
    )


def _claims(runs: dict[str, Runs]) -> Table:
    """The paired differences that the claims are about."""
    rows = []
    for party in PAIR:
        full, none, alone = runs["f-tis"], runs["nois"], runs["alone"]
        rows += [
            (f"{party}: f-tis minus alone, end", paired(full.end(party), alone.end(party)).in_points(signed=True)),
            (f"{party}: nois minus f-tis, end", paired(none.end(party), full.end(party)).in_points(signed=True)),
            (
                f"{party}: nois minus f-tis, mean over rounds",
                paired(none.mean_over_rounds(party), full.mean_over_rounds(party)).in_points(signed=True),
            ),
            (
                f"{party}: f-tis minus alone, out of distribution",
                paired(full.end(party, "out"), alone.end(party, "out")).in_points(signed=True),
            ),
        ]
    return Table("Paired differences over seeds, in points.", ("difference", "points"), tuple(rows))
