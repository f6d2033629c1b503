"""The last rounds and the last hour's traffic as series to plot: the JSON of ``/history.json``. Pure.

Field by field it is described in docs/metrics.md. Every list of a series is as long as the others; what isn't known
at a point is null there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from ftis_node.store.reports import RoundReport

HISTORY_SCHEMA = 1
ROUNDS = 500
POINTS = 250

Series = tuple[float | None, ...]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null")


class RoundSeries(_Part):
    """One point per ``rounds_per_point`` rounds: their mean, under the number and the time of the last of them."""

    round: tuple[int, ...] = ()
    at_ms: tuple[int, ...] = ()
    skipped_steps: tuple[int, ...] = ()
    own_reward: Series = ()
    peer_reward: Series = ()
    filtered_share: Series = ()
    importance_weight: Series = ()
    truncated_share: Series = ()
    peer_divergence: Series = ()
    kl_threshold: Series = ()
    peer_weight: Series = ()
    generating_seconds: Series = ()
    scoring_seconds: Series = ()
    training_seconds: Series = ()
    waiting_seconds: Series = ()
    measuring_seconds: Series = ()
    tokens_per_second: Series = ()


class TrafficSeries(_Part):
    """With all peers together, between one sample and the next."""

    at_ms: tuple[int, ...] = ()
    bytes_in_per_second: Series = ()
    bytes_out_per_second: Series = ()


class History(_Part):
    schema_version: int = HISTORY_SCHEMA
    rounds_per_point: int = 1
    rounds: RoundSeries = RoundSeries()
    traffic: TrafficSeries = TrafficSeries()


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """Bytes exchanged with all peers up to a time (ms)."""

    at_ms: int
    bytes_in: int
    bytes_out: int


def _filtered_share(report: RoundReport) -> float | None:
    """Of the peers' sequences in the step, those that the divergence filter left out."""
    step = report.peers.trained + report.peers.filtered + report.peers.zero_advantage
    return report.peers.filtered / step if step else None


_AVERAGED: dict[str, Callable[[RoundReport], float | None]] = {
    "own_reward": lambda report: report.own_reward,
    "peer_reward": lambda report: report.peer_reward,
    "filtered_share": _filtered_share,
    "importance_weight": lambda report: report.importance_weight,
    "truncated_share": lambda report: report.truncated_share,
    "peer_divergence": lambda report: report.peer_divergence,
    "kl_threshold": lambda report: report.kl_threshold,
    "peer_weight": lambda report: report.peer_weight,
    "generating_seconds": lambda report: report.seconds.generating,
    "scoring_seconds": lambda report: report.seconds.scoring,
    "training_seconds": lambda report: report.seconds.training,
    "waiting_seconds": lambda report: report.seconds.waiting,
    "measuring_seconds": lambda report: report.seconds.measuring,
    "tokens_per_second": lambda report: report.tokens_per_second,
}


def history_of(rounds: Sequence[tuple[RoundReport, int]], traffic: Sequence[TrafficSample]) -> History:
    """From reports with the time (ms) of each and samples of traffic, both oldest first; at most ``POINTS`` points."""
    per_point = max(1, math.ceil(len(rounds) / POINTS))
    # Counted from the newest, so that a point doesn't change once it is complete.
    points = [rounds[max(0, end - per_point) : end] for end in range(len(rounds), 0, -per_point)][::-1]
    series = {
        name: tuple(_mean(value(report) for report, _ in point) for point in points)
        for name, value in _AVERAGED.items()
    }
    return History(
        rounds_per_point=per_point,
        rounds=RoundSeries.model_validate(
            {
                "round": tuple(point[-1][0].round for point in points),
                "at_ms": tuple(point[-1][1] for point in points),
                "skipped_steps": tuple(sum(not report.stepped for report, _ in point) for point in points),
                **series,
            }
        ),
        traffic=_traffic(traffic),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def _traffic(samples: Sequence[TrafficSample]) -> TrafficSeries:
    pairs = [(a, b) for a, b in pairwise(samples) if b.at_ms > a.at_ms]
    return TrafficSeries(
        at_ms=tuple(b.at_ms for _, b in pairs),
        bytes_in_per_second=tuple(1000 * (b.bytes_in - a.bytes_in) / (b.at_ms - a.at_ms) for a, b in pairs),
        bytes_out_per_second=tuple(1000 * (b.bytes_out - a.bytes_out) / (b.at_ms - a.at_ms) for a, b in pairs),
    )
