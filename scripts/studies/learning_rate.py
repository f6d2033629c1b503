"""Before the studies: the learning rate, chosen on ``alone`` with seeds that no study uses, once for all methods."""

from __future__ import annotations

import dataclasses

from scripts.studies.intervals import interval
from scripts.studies.report import Report, Table
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting

CHOSEN_FOR = ("small", "large", "large-lora")
LORA_FACTOR = 10
"""Adapters take higher rates."""


def _rates(setting: Setting, model: str) -> list[float]:
    factor = LORA_FACTOR if setting.models[model].rank else 1
    return [rate * factor for rate in setting.learning_rates]


def simulations(setting: Setting) -> list[Planned]:
    plans = []
    for model in CHOSEN_FOR:
        for rate in _rates(setting, model):
            other = dataclasses.replace(
                setting, models={model: dataclasses.replace(setting.models[model], learning_rate=rate)}
            )
            spec = other.simulation(f"rate-{model}-{rate:g}", {model: model}, collaboration="alone")
            plans.append(Planned(spec, setting.seeds.choice))
    return plans


def report(setting: Setting, archive: Archive) -> Report:
    rows = []
    for model in CHOSEN_FOR:
        for rate in _rates(setting, model):
            runs = archive[f"rate-{model}-{rate:g}"]
            chosen = "yes" if rate == setting.models[model].learning_rate else ""
            rows.append(
                (
                    model, f"{rate:g}", interval(runs.end(model)).in_points(),
                    interval(runs.mean_over_rounds(model)).in_points(), interval(runs.end(model, "out")).in_points(),
                    chosen,
                )
            )  # fmt: skip
    heading = ("model", "learning rate", "at the end", "mean over rounds", "out, at the end", "used in the studies")
    return Report((Table("Alone, accuracy in points.", heading, tuple(rows)),))
