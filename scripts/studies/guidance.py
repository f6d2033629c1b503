"""Study 10: places for what teaches, and guidance: what a party learns of what it lacks, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftis_node.simulation.figures import RoundLine
from scripts.studies.heterogeneity import EXPERTISE
from scripts.studies.intervals import interval, paired
from scripts.studies.report import Curve, Panel, Report, Table
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting
from scripts.studies.which_part import PAIR

TEACHING: Mapping[str, Any] = {"training": {"places": "informative"}}
GUIDED: Mapping[str, Any] = {**TEACHING, "ftis": {"guidance": "own-rate"}}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "alone": {"collaboration": "alone"},
    "f-tis": {},
    "what teaches": TEACHING,
    "guided": GUIDED,
}
PAIRS: Mapping[str, Mapping[str, str]] = {"expertise": EXPERTISE, "size": PAIR}


def _name(pair: str, arm: str) -> str:
    return f"guidance-{pair}-{arm.replace(' ', '-')}"


def simulations(setting: Setting) -> list[Planned]:
    return [
        Planned(
            setting.simulation(
                _name(pair, arm), parties, skills=pair == "expertise", **fields,
                evaluations=tuple(
                    wanted
                    for wanted in (setting.skill_evaluations if pair == "expertise" else setting.evaluations)
                    if wanted.name in _sets(setting, pair)
                ),
                eval_every=4 * setting.eval_every,
            ),
            setting.seeds.claim,
        )
        for pair, parties in PAIRS.items()
        for arm, fields in ARMS.items()
    ]  # fmt: skip


def _sets(setting: Setting, pair: str) -> Sequence[str]:
    """What is trained on: one kind of item, or those of both skills."""
    if pair == "size":
        return [wanted.name for wanted in setting.evaluations if wanted.distribution == "in"]
    return [wanted.name for wanted in setting.skill_evaluations if wanted.name in ("in", "other-operation")] or [
        setting.skill_evaluations[0].name
    ]


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.claim)
    rows, panels = [], []
    for pair, parties in PAIRS.items():
        runs = {arm: archive.first(_name(pair, arm), seeds) for arm in ARMS}
        for party in parties:
            for name in _sets(setting, pair):
                rows += [_row(pair, party, name, arm, each, runs["alone"]) for arm, each in runs.items()]
                panels.append(_panel(f"{party}, {_called(pair, name)}", party, name, runs))
    heading = ("pair: party", "on", "arm", "at the start", "at the end", "minus alone", "own tokens a round",
               "own groups that teach", "peers'")  # fmt: skip
    return Report((Table("Accuracy in points; groups are means over rounds.", heading, tuple(rows)),), tuple(panels))


def _called(pair: str, name: str) -> str:
    if pair == "size":
        return "in distribution"
    return {"in": "sums", "other-operation": "differences"}.get(name, name)


def _row(pair: str, party: str, name: str, arm: str, runs: Runs, alone: Runs) -> tuple[str, ...]:
    end, of_alone = (each.at(each.spec.rounds, party, [name]) for each in (runs, alone))
    own = runs.of_rounds(party, lambda line: _taught(line, own=True))
    peers = runs.of_rounds(party, lambda line: _taught(line, own=False))
    tokens = runs.of_rounds(party, lambda line: float(line.generated_tokens))
    size = runs.spec.run.group_size
    return (
        f"{pair}: {party}", _called(pair, name), arm, interval(runs.at(0, party, [name])).in_points(),
        interval(end).in_points(), "" if arm == "alone" else paired(end, of_alone).in_points(signed=True),
        f"{interval(tokens).mean:,.0f}", f"{interval(own).mean / size:.1f}",
        f"{interval(peers).mean / size:.1f}" if peers else "",
    )  # fmt: skip


def _taught(line: RoundLine, *, own: bool) -> float | None:
    """Sequences with an advantage."""
    found = [fates for origin, fates in line.sequences.items() if (origin == "own") is own]
    if not found:
        return None
    return float(sum(fates.trained + fates.filtered + sum(fates.excluded.values()) for fates in found))


def _panel(title: str, party: str, name: str, runs: Mapping[str, Runs]) -> Panel:
    curves = []
    for arm, each in runs.items():
        rounds = each.evaluated()
        found = [interval(each.at(n, party, [name])) for n in rounds]
        half = [one.high - one.mean for one in found] if len(each.results) > 1 else []
        curves.append(Curve(arm, rounds, [one.mean for one in found], half))
    return Panel(title, "round", "accuracy", tuple(curves))
