"""Study 6: one, two and four parties; own generated tokens and modelled time until a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftis_node.simulation.figures import RoundLine
from ftis_node.simulation.results import Results
from scripts.studies.intervals import interval
from scripts.studies.report import Curve, Panel, Report, Table
from scripts.studies.runs import Archive, Planned, Runs
from scripts.studies.setting import Setting

FOUR = {"small": "small", "large": "large", "small-b": "small-b", "large-b": "large-b"}
TWO = {name: FOUR[name] for name in ("small", "large")}
MEASURED = ("small", "large")


def simulations(setting: Setting) -> list[Planned]:
    seeds = setting.seeds.claim
    return [
        Planned(setting.simulation("pair-alone", TWO, collaboration="alone"), seeds),
        Planned(setting.simulation("pair-f-tis", TWO, ftis={"method": "f-tis"}), seeds),
        Planned(setting.simulation("four-f-tis", FOUR), seeds),
    ]


@dataclass(frozen=True)
class Effort:
    """What it took to reach the target: rounds (between evaluations interpolated), own tokens, modelled seconds."""

    rounds: float
    own_tokens: float
    seconds: float


@dataclass(frozen=True)
class Rates:
    """Tokens a second, measured: sampling, and scoring with training."""

    generation: float
    training: float


def measured_rates(runs: Runs, party: str) -> Rates:
    """Over all rounds of a party that trains alone."""
    lines = [line for result in runs.results for line in result.rounds if line.party == party]
    return Rates(
        generation=sum(line.generated_tokens for line in lines) / sum(line.seconds["generating"] for line in lines),
        training=sum(line.trained_tokens for line in lines) / sum(line.seconds["training"] for line in lines),
    )


def effort(result: Results, party: str, sets: tuple[str, ...], target: float, rates: Rates) -> Effort | None:
    """Until the accuracy first is ``target``; None if it never is."""
    rounds = first_reached(result, party, sets, target)
    if rounds is None:
        return None
    lines: list[RoundLine] = [line for line in result.rounds if line.party == party]
    whole, part = int(rounds), rounds - int(rounds)
    counted = [*((line, 1.0) for line in lines[:whole]), *((line, part) for line in lines[whole : whole + 1])]
    own = sum(share * line.generated_tokens for line, share in counted)
    trained = sum(share * line.trained_tokens for line, share in counted)
    return Effort(rounds, own, own / rates.generation + trained / rates.training)


def first_reached(result: Results, party: str, sets: tuple[str, ...], target: float) -> float | None:
    before: tuple[int, float] | None = None
    for line in result.evaluations:
        if line.party != party or line.set not in sets:
            continue
        if line.accuracy >= target:
            if before is None:
                return float(line.round)
            share = (target - before[1]) / (line.accuracy - before[1])
            return before[0] + share * (line.round - before[0])
        before = (line.round, line.accuracy)
    return None


def report(setting: Setting, archive: Archive) -> Report:
    seeds = len(setting.seeds.claim)
    names: Mapping[str, str] = {"1": "pair-alone", "2": "pair-f-tis", "4": "four-f-tis"}
    runs = {count: archive.first(name, seeds) for count, name in names.items()}
    rows, panels = [], []
    for party in MEASURED:
        rates = measured_rates(runs["1"], party)
        efforts = {
            count: [effort(r, party, each.sets("in"), setting.targets[party], rates) for r in each.results]
            for count, each in runs.items()
        }
        rows += [_row(party, count, runs[count], efforts[count], efforts["1"]) for count in names]
        panels.append(_by_tokens(party, runs))
    heading = (
        "party", "parties", "at the end", "seeds that reach it", "rounds", "own tokens",
        "of alone's", "modelled seconds", "of alone's",
    )  # fmt: skip
    targets = " and ".join(f"{100 * setting.targets[party]:.0f} ({party})" for party in MEASURED)
    caption = (
        f"Until {targets} points in distribution. Time is modelled: own tokens and trained tokens at"
        " the rates measured alone; waiting for peers and the network are not in it."
    )
    return Report((Table(caption, heading, tuple(rows)),), tuple(panels))


def _row(
    party: str, count: str, runs: Runs, efforts: list[Effort | None], alone: list[Effort | None]
) -> tuple[str, ...]:
    # Where alone starts above the target there is nothing to compare with.
    both = [(a, b) for a, b in zip(efforts, alone, strict=True) if a is not None and b is not None and b.own_tokens > 0]
    reached = [e for e in efforts if e is not None]
    if not reached:
        return (party, count, interval(runs.end(party)).in_points(), f"0 of {len(efforts)}", "", "", "", "", "")
    ratios = ("", "")
    if count != "1" and both:
        ratios = (
            interval([a.own_tokens / b.own_tokens for a, b in both]).plain(),
            interval([a.seconds / b.seconds for a, b in both]).plain(),
        )
    return (
        party, count, interval(runs.end(party)).in_points(), f"{len(reached)} of {len(efforts)}",
        interval([e.rounds for e in reached]).plain(1), f"{interval([e.own_tokens for e in reached]).mean:,.0f}",
        ratios[0], interval([e.seconds for e in reached]).plain(1), ratios[1],
    )  # fmt: skip


def _by_tokens(party: str, runs: Mapping[str, Runs]) -> Panel:
    curves = []
    for count, each in runs.items():
        rounds, accuracy = each.curve(party)
        tokens = each.of_rounds(party, lambda line: float(line.generated_tokens))
        per_round = interval(tokens).mean
        curves.append(Curve("alone" if count == "1" else f"{count} parties", [n * per_round for n in rounds], accuracy))
    return Panel(f"{party} model", "own generated tokens", "accuracy in distribution", tuple(curves))
