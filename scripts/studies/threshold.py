"""Study 3: how far a worse sample may be away (g), by estimator and model size, and how far weights go (C)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Curve, Panel, Report, Table
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR, pair_alone, pair_with

THRESHOLDS: Mapping[str, tuple[float, ...]] = {
    "k3": (0.5, 2.0, 10.0, 50.0, 500.0),
    "k3_forward": (0.1, 0.2, 0.5, 1.0, 5.0),
    "k1_mean": (0.1, 0.2, 0.5, 1.0, 5.0),
    "k1_sum": (2.0, 5.0, 10.0, 20.0, 50.0),
}
"""Of k3 around what was seen in study 1: of peers' A < 0 sequences a tenth lies below 0.06, half below 0.9 (large) and
1.7 (small), a tenth above 15 and 590. Those of the other estimators are guesses."""

PAPER_THRESHOLDS = {"k3": (1.0, 5.0, 10.0, 50.0, 100.0)}
TRUNCATIONS: tuple[tuple[str, float], ...] = (("1", 1.0), ("4", 4.0), ("8", 8.0), ("none", float("inf")))
"""2 is the default, and in study 1."""

AUTO = "auto"
DEFAULT = ("k3", 50.0)
"""Which study 1 has."""


def _thresholds(setting: Setting) -> Mapping[str, tuple[float, ...]]:
    if setting.size == "tiny":
        return THRESHOLDS
    if setting.size == "paper":
        return {**THRESHOLDS, **PAPER_THRESHOLDS}
    return {estimator: values[:1] for estimator, values in THRESHOLDS.items()}


def _name(estimator: str, threshold: float | str) -> str:
    value = threshold if isinstance(threshold, str) else f"{threshold:g}"
    return f"threshold-{estimator.replace('_', '-')}-{value}"


def _arms(setting: Setting) -> list[tuple[str, float | str]]:
    """Estimator and threshold."""
    arms: list[tuple[str, float | str]] = []
    for estimator, values in _thresholds(setting).items():
        arms += [*((estimator, value) for value in values), (estimator, AUTO)]
    return arms


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.other
    plans = [pair_alone(setting, seeds), *(pair_with(setting, method, seeds) for method in ("f-tis", "tis"))]
    for estimator, value in _arms(setting):
        if (estimator, value) == DEFAULT:
            continue
        ftis: dict[str, Any] = {"kl_estimator": estimator, "kl_threshold": value}
        plans.append(
            Planned(setting.simulation(_name(estimator, value), PAIR, ftis=ftis, **setting.evaluated_inside), seeds)
        )
    for label, value in TRUNCATIONS:
        spec = setting.simulation(f"truncation-{label}", PAIR, ftis={"truncation": value}, **setting.evaluated_inside)
        plans.append(Planned(spec, seeds))
    return plans


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.other)
    alone = archive.first("pair-alone", seeds)
    default = archive.first("pair-f-tis", seeds)
    unfiltered = archive.first("pair-tis", seeds)
    rows = [_row("no filter", "", unfiltered, alone)]
    constant: dict[str, dict[float, Runs]] = {}
    automatic: dict[str, Runs] = {}
    for estimator, value in _arms(setting):
        runs = default if (estimator, value) == DEFAULT else archive.first(_name(estimator, value), seeds)
        rows.append(_row(estimator, value if isinstance(value, str) else f"{value:g}", runs, alone))
        if isinstance(value, str):
            automatic[estimator] = runs
        else:
            constant.setdefault(estimator, {})[value] = runs
    truncations = [
        _row(f"C = {label}", "", archive.first(f"truncation-{label}", seeds), alone) for label, _ in TRUNCATIONS
    ]
    truncations.insert(1, _row("C = 2", "", default, alone))
    heading = (
        "estimator", "g", "small: end", "minus alone", "filtered", "large: end", "minus alone", "filtered",
    )  # fmt: skip
    panels = [
        Panel(
            f"{party} model",
            "threshold g",
            "accuracy in distribution",
            tuple(_by_threshold(estimator, constant[estimator], party) for estimator in constant),
            log_x=True,
        )
        for party in PAIR
    ]
    return Report(
        (
            Table("Threshold g: accuracy in points, and the share of peers' A < 0 sequences that the filter took.",
                  heading, tuple(rows)),
            _automatic(constant, automatic),
            Table("Truncation C, with k3 and g = 50.", heading, tuple(truncations)),
            _scales(default),
        ),
        tuple(panels),
    )  # fmt: skip


def _row(estimator: str, value: str, runs: Runs, alone: Runs) -> tuple[str, ...]:
    cells = []
    for party in PAIR:
        shares = runs.filtered_share(party)
        cells += [
            interval(runs.end(party)).in_points(),
            paired(runs.end(party), alone.end(party)).in_points(signed=True),
            f"{100 * interval(shares).mean:.0f} %" if shares else "",
        ]
    return (estimator, value, *cells)


def _by_threshold(estimator: str, constant: Mapping[float, Runs], party: str) -> Curve:
    found = [interval(runs.end(party)) for runs in constant.values()]
    return Curve(estimator, list(constant), [each.mean for each in found], [each.high - each.mean for each in found])


def _automatic(constant: Mapping[str, Mapping[float, Runs]], automatic: Mapping[str, Runs]) -> Table:
    """Against the best constant, which was the best of several by chance too, and against all in the mean."""
    rows = []
    for estimator, auto in automatic.items():
        for party in PAIR:
            ends = {value: runs.end(party) for value, runs in constant[estimator].items()}
            best = max(ends, key=lambda value: interval(ends[value]).mean)
            mean = [sum(values) / len(values) for values in zip(*ends.values(), strict=True)]
            rows.append(
                (
                    f"{estimator}, {party}", f"{best:g}", paired(auto.end(party), ends[best]).in_points(signed=True),
                    paired(auto.end(party), mean).in_points(signed=True),
                )
            )  # fmt: skip
    heading = ("estimator, party", "best constant g", "auto minus best", "auto minus the mean of all constants")
    return Table("The automatic threshold, at the end, in points.", heading, tuple(rows))


def _scales(runs: Runs) -> Table:
    """How far the peer's samples are, so that a threshold means something."""
    rows = []
    for party in PAIR:
        for sign in ("negative", "positive"):
            values = runs.median_divergence(party, sign)
            rows.append(
                (f"{party}, A {'<' if sign == 'negative' else '>'} 0", interval(values).plain() if values else "")
            )
    return Table("k3 of the peer's sequences, median over rounds of the median.", ("party", "nats"), tuple(rows))
