"""Runs studies and writes what they say.

    python -m scripts.studies which_part --size tiny --output studies --jobs 2
    python -m scripts.studies all --document docs/study.md        # the reports of what is there already, into the text

Simulations that several studies have in common run once. Stopped or killed, the same command goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ftis_node.commands.simulate import run_simulations
from ftis_node.errors import FtisError
from scripts.studies import (
    beginner,
    controls,
    direction,
    foreign_tokenizers,
    guidance,
    guided_harm,
    harm,
    heterogeneity,
    how_many,
    in_time,
    learning_rate,
    staleness,
    threshold,
    which_part,
)
from scripts.studies.document import place
from scripts.studies.report import draw
from scripts.studies.runs import Archive, Planned, merged
from scripts.studies.setting import SIZES, Setting, miniature, paper, tiny
from scripts.studies.starts import make_starts, start_folders

STUDIES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        learning_rate, which_part, heterogeneity, threshold, direction, foreign_tokenizers, how_many, staleness, harm,
        controls, guidance, in_time, beginner, guided_harm,
    )
}  # fmt: skip


def main() -> int:
    options = _options()
    names = list(STUDIES) if options.study == "all" else [options.study]
    try:
        setting = _setting(options)
        plans = {name: STUDIES[name].simulations(setting) for name in names}
        planned = merged(list(itertools.chain.from_iterable(plans.values())))
        folder = options.output / options.size
        if options.document is None:
            _make_what_is_missing(planned, options.output / "starts")
            code = _run(planned, folder, options.jobs)
            if code != 0:
                return code
        for name in names:
            _report(name, setting, Archive(folder, merged(plans[name])), options)
    except FtisError as error:
        print(f"scripts.studies: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.studies", description="Studies of the method.")
    parser.add_argument("study", choices=[*STUDIES, "all"])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--output", type=Path, default=Path("studies"), help="result files; they are gone on with")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    parser.add_argument("--seeds", type=int, default=10, help="at most so many of each simulation")
    parser.add_argument("--document", type=Path, help="run nothing: put the reports into this Markdown file")
    parser.add_argument("--rounds", type=int, default=50, help="of the paper's size")
    parser.add_argument("--stand-in", help="of the paper's size: this model in the place of all others")
    parser.add_argument("--data", action="append", default=[], metavar="TASK=FILE", help="of the paper's size")
    return parser.parse_args()


def _setting(options: argparse.Namespace) -> Setting:
    setting = _setting_of_size(options)
    return dataclasses.replace(setting, seeds=setting.seeds.at_most(options.seeds))


def _setting_of_size(options: argparse.Namespace) -> Setting:
    if options.size == "tiny":
        return tiny(start_folders(options.output / "starts"))
    if options.size == "miniature":
        return miniature()
    files = dict(item.partition("=")[::2] for item in options.data)
    return paper(options.stand_in, files, options.rounds)


def _make_what_is_missing(planned: Sequence[Planned], directory: Path) -> None:
    """The starts that these simulations begin with; none but in the tiny size."""
    used = {party.node.model.name for plan in planned for party in plan.spec.parties}
    wanted = [name for name, folder in start_folders(directory).items() if str(folder) in used]
    if wanted:
        make_starts(directory, wanted)


def _run(planned: Sequence[Planned], folder: Path, jobs: int) -> int:
    """Those with the same seeds together, so that no process waits for another."""
    by_seeds = sorted(planned, key=lambda plan: len(plan.seeds), reverse=True)
    for _, group in itertools.groupby(by_seeds, key=lambda plan: (len(plan.seeds), plan.seeds[0])):
        plans = list(group)
        code = run_simulations([plan.spec for plan in plans], list(plans[0].seeds), folder, jobs=jobs)
        if code != 0:
            return code
    return 0


def _report(name: str, setting: Setting, archive: Archive, options: argparse.Namespace) -> None:
    report = STUDIES[name].report(setting, archive)
    document: Path | None = options.document
    pictures = options.output / options.size if document is None else document.parent / document.stem
    picture = pictures / f"{name}.png"
    if report.panels:
        pictures.mkdir(parents=True, exist_ok=True)
        draw(report.panels, picture)
    shown = str(picture.relative_to(picture.parent if document is None else document.parent)) if report.panels else None
    text = report.markdown(shown)
    took = f"Simulations: {archive.seconds() / 60:.0f} minutes of one core."
    if document is None:
        print(f"## {name}\n\n{text}\n{took}\n")
    else:
        place(document, name, f"{text}\n{took}\n")


if __name__ == "__main__":
    sys.exit(main())
