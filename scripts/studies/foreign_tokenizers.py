"""Study 5: two models with different tokenizers, in the three modes of ``training.cross_tokenizer``."""

from __future__ import annotations

from scripts.studies.intervals import interval, paired
from scripts.studies.report import Report, Table, learning_curves
from scripts.studies.runs import Archive, Planned
from scripts.studies.setting import Setting

PARTIES = {"bytes": "small", "merged": "merged"}
MODES = ("off", "positives", "all")


def simulations(setting: Setting) -> list[Planned]:
    alone = setting.simulation("tokenizers-alone", PARTIES, collaboration="alone")
    return [
        Planned(alone, setting.seeds.claim),
        *(
            Planned(
                setting.simulation(f"tokenizers-{mode}", PARTIES, training={"cross_tokenizer": mode}),
                setting.seeds.claim,
            )
            for mode in MODES
        ),
    ]


def report(setting: Setting, archive: Archive) -> Report:
    del setting
    runs = {mode: archive[f"tokenizers-{mode}"] for mode in ("alone", *MODES)}
    rows = []
    for party in PARTIES:
        for mode, each in runs.items():
            trained = each.of_rounds(
                party, lambda line: float(sum(f.trained for origin, f in line.sequences.items() if origin != "own"))
            )
            rows.append(
                (
                    party, mode, interval(each.end(party)).in_points(),
                    paired(each.end(party), runs["alone"].end(party)).in_points(signed=True) if mode != "alone" else "",
                    interval(each.end(party, "out")).in_points(),
                    f"{interval(trained).mean:.0f}" if trained else "",
                )
            )  # fmt: skip
    heading = ("party", "mode", "at the end", "minus alone", "out, at the end", "peer's sequences trained on, a round")
    panels = tuple(learning_curves(f"{party} tokens", party, runs) for party in PARTIES)
    return Report((Table("Accuracy in points.", heading, tuple(rows)),), panels)
