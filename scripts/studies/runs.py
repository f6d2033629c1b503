"""The results of simulations, looked at as a study needs them: values by seed, always in the order of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from ftis_node.errors import ConfigError
from ftis_node.simulation.figures import RoundLine
from ftis_node.simulation.results import Results, read_results, result_path
from ftis_node.simulation.specification import SimulationSpec


@dataclass(frozen=True)
class Planned:
    """A simulation and its seeds."""

    spec: SimulationSpec
    seeds: Sequence[int]


@dataclass(frozen=True)
class Runs:
    """All seeds of one simulation, whole. Accuracies are shares, ``party`` and ``set`` names of the specification."""

    spec: SimulationSpec
    results: tuple[Results, ...]

    @property
    def parties(self) -> tuple[str, ...]:
        """Without the hostile ones, which nobody measures."""
        return tuple(party.name for party in self.spec.parties if party.harm is None)

    def sets(self, distribution: str) -> tuple[str, ...]:
        return tuple(wanted.name for wanted in self.spec.evaluations if wanted.distribution == distribution)

    def at(self, round_number: int, party: str, sets: Sequence[str]) -> list[float]:
        """Accuracy after that round, the mean over ``sets``; by seed."""
        return [
            fmean(
                line.accuracy
                for line in result.evaluations
                if line.party == party and line.round == round_number and line.set in sets
            )
            for result in self.results
        ]

    def start(self, party: str, distribution: str = "in") -> list[float]:
        return self.at(0, party, self.sets(distribution))

    def end(self, party: str, distribution: str = "in") -> list[float]:
        return self.at(self.spec.rounds, party, self.sets(distribution))

    def evaluated(self) -> list[int]:
        return sorted({line.round for line in self.results[0].evaluations})

    def mean_over_rounds(self, party: str, distribution: str = "in") -> list[float]:
        """Of all evaluations behind the start, each counted once."""
        curves = [self.at(n, party, self.sets(distribution)) for n in self.evaluated() if n > 0]
        return [fmean(values) for values in zip(*curves, strict=True)]

    def curve(self, party: str, distribution: str = "in") -> tuple[list[int], list[float]]:
        """Rounds, and the accuracy in the mean over seeds."""
        rounds = self.evaluated()
        return rounds, [fmean(self.at(n, party, self.sets(distribution))) for n in rounds]

    def of_rounds(self, party: str, value: Callable[[RoundLine], float | None]) -> list[float]:
        """The mean over the rounds in which there is a value; by seed, without seeds that have none."""
        found = []
        for result in self.results:
            values = [v for line in result.rounds if line.party == party and (v := value(line)) is not None]
            if values:
                found.append(fmean(values))
        return found

    def median_divergence(self, party: str, sign: str = "negative") -> list[float]:
        """Of peers' sequences with an advantage of this sign: the median over rounds of the median; by seed."""
        found = []
        for result in self.results:
            values = [
                quantiles.q50
                for line in result.rounds
                if line.party == party
                for origin, by_sign in line.divergence.items()
                if origin != "own"
                for at, quantiles in by_sign.items()
                if at == sign
            ]
            if values:
                found.append(median(values))
        return found

    def filtered_share(self, party: str) -> list[float]:
        """Of peers' sequences with an advantage below 0, by seed."""
        shares = []
        for result in self.results:
            negative = filtered = 0
            for line in (line for line in result.rounds if line.party == party):
                for origin, fates in line.sequences.items():
                    if origin != "own":
                        filtered += fates.filtered
                        quantiles = line.divergence.get(origin, {}).get("negative")
                        negative += quantiles.count if quantiles is not None else 0
            if negative:
                shares.append(filtered / negative)
        return shares


class Archive:
    """The folder with the result files."""

    def __init__(self, folder: Path, planned: Sequence[Planned]) -> None:
        self._folder = folder
        self._planned = {plan.spec.name: plan for plan in planned}

    def __getitem__(self, name: str) -> Runs:
        """Raises ConfigError when a seed isn't whole, KeyError for what isn't planned."""
        plan = self._planned[name]
        results = tuple(read_results(result_path(self._folder, plan.spec, seed)) for seed in plan.seeds)
        if any(result.done is None for result in results):
            raise ConfigError(f"{self._folder}: {name} is not finished; run the study again to go on")
        return Runs(plan.spec, results)

    def first(self, name: str, seeds: int) -> Runs:
        """With the first seeds only: another study may have asked for more of them."""
        runs = self[name]
        return Runs(runs.spec, runs.results[:seeds])

    def __contains__(self, name: object) -> bool:
        return name in self._planned

    def seconds(self) -> float:
        """Machine time of all runs, in seconds of one process."""
        runs = [self[name] for name in self._planned]
        return sum(result.done.seconds for each in runs for result in each.results if result.done is not None)


def merged(plans: Sequence[Planned]) -> list[Planned]:
    """Each simulation once, with the most seeds that anyone wants. Raises ConfigError for a name with two meanings."""
    found: dict[str, Planned] = {}
    for plan in plans:
        held = found.setdefault(plan.spec.name, plan)
        if held.spec != plan.spec:
            raise ConfigError(f"simulation {plan.spec.name!r}: two studies mean different things by it")
        if len(plan.seeds) > len(held.seeds):
            found[plan.spec.name] = plan
    return list(found.values())
