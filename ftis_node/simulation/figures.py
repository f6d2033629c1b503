"""The lines of a result file, and how a step becomes one. Nothing here is computed with that is not reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from ftis_node.evaluate import Evaluation
from ftis_node.round_report import RoundClock
from ftis_node.simulation.mailbox import Arrivals
from ftis_node.simulation.specification import EvaluationSet, SimulationSpec
from ftis_node.store import authors
from ftis_node.training.collate import TrainingGroup
from ftis_node.training.step import SequenceReport, StepReport

Seconds = dict[str, float]
Reasons = dict[str, dict[str, int]]
"""Counts by party and reason."""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Environment(_Line):
    """What the numbers may depend on beside the specification and the seed."""

    ftis_node: str
    python: str
    torch: str
    transformers: str
    numpy: str
    processor: str
    cores: int
    device: str


class RunLine(_Line):
    """The first line. ``made_at`` is when the run was begun, in UTC."""

    kind: Literal["run"] = "run"
    schema_version: int
    seed: int
    specification: SimulationSpec
    environment: Environment
    made_at: str


class Fates(_Line):
    """Sequences of one origin by what became of them."""

    trained: int = 0
    filtered: int = 0
    zero_advantage: int = 0
    excluded: dict[str, int] = {}


class Quantiles(_Line):
    """Of divergences (nats; k3 and its kin)."""

    count: int
    q10: float
    q25: float
    q50: float
    q75: float
    q90: float
    largest: float


class RoundLine(_Line):
    """One party's round. By origin: ``"own"``, or the name of the party that sampled.

    ``reward`` is of own groups, ``rewards`` of all in the step; ``divergence`` is by origin and by the sign of the
    advantage. Gradient norms are before clipping, the importance weight is a mean over tokens. ``kl_threshold`` is the
    filter's in this step; ``peer_weights`` are the factors of peers whose usefulness was measured often enough.
    ``time``: simulated seconds at the end of the round, where every party has its own pace.
    """

    kind: Literal["round"] = "round"
    round: int
    party: str
    reward: float | None
    rewards: dict[str, float]
    generated_tokens: int
    generated_sequences: int
    trained_tokens: int
    stepped: bool
    skipped_reason: str | None
    loss: float
    gradient_norm: float | None
    importance_weight: float | None
    truncated_share: float | None
    clipped_share: float | None
    kl_threshold: float | None = None
    own_logprob_mismatch: float | None
    sequences: dict[str, Fates]
    divergence: dict[str, dict[Literal["negative", "positive"], Quantiles]]
    rejected_batches: Reasons
    rejected_groups: Reasons
    unusable_groups: Reasons
    agreement: dict[str, float]
    peer_weights: dict[str, float] = {}
    time: float | None = None
    seconds: Seconds


class EvaluationLine(_Line):
    """Greedy pass@1 after a round; round 0 is the start. ``low`` and ``high``: 95 %, of these items alone.

    Where every party has its own pace ``time`` is in simulated seconds, ``round`` is the party's last whole one by
    then, and ``own_tokens`` is what it had sampled, for the round under way too.
    """

    kind: Literal["evaluation"] = "evaluation"
    round: int
    party: str
    set: str
    distribution: Literal["in", "out"]
    correct: int
    total: int
    accuracy: float
    low: float
    high: float
    completion_tokens: float
    unfinished: int
    time: float | None = None
    own_tokens: int | None = None
    seconds: float


class DoneLine(_Line):
    """The last line. ``rounds``: the most of any party; ``seconds`` without those before a resume."""

    kind: Literal["done"] = "done"
    rounds: int
    seconds: float


def evaluation_line(
    round_number: int, party: str, wanted: EvaluationSet, found: Evaluation, seconds: float
) -> EvaluationLine:
    return EvaluationLine(
        round=round_number,
        party=party,
        set=wanted.name,
        distribution=wanted.distribution,
        correct=found.correct,
        total=found.total,
        accuracy=found.accuracy,
        low=found.low,
        high=found.high,
        completion_tokens=sum(answer.completion_tokens for answer in found.answers) / found.total,
        unfinished=sum(not answer.finished for answer in found.answers),
        seconds=round(seconds, 4),
    )


def round_line(
    round_number: int, party: str, *, step: StepReport, groups: Sequence[TrainingGroup],
    origins: Sequence[Sequence[str]], own_rewards: Sequence[float], arrivals: Arrivals,
    agreements: Mapping[bytes, float], weights: Mapping[str, float], names: Mapping[str, str], clock: RoundClock,
    mismatch_known: bool,
) -> RoundLine:  # fmt: skip
    """``origins`` has one name for each sequence of each group; ``names`` maps hex peer ids to parties' names."""
    by_origin: defaultdict[str, list[SequenceReport]] = defaultdict(list)
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for report in step.sequences:
        origin = origins[report.group][report.member]
        by_origin[origin].append(report)
        rewards[origin].append(groups[report.group].sequences[report.member].reward)
    return RoundLine(
        round=round_number,
        party=party,
        reward=_mean(own_rewards),
        rewards={origin: sum(values) / len(values) for origin, values in rewards.items()},
        generated_tokens=sum(stats.tokens for stats in clock.generation),
        generated_sequences=clock.generated_sequences,
        trained_tokens=step.tokens_trained,
        stepped=step.stepped,
        skipped_reason=step.skipped_reason,
        loss=step.loss,
        gradient_norm=step.gradient_norm,
        importance_weight=step.importance_weight,
        truncated_share=step.truncated_share,
        clipped_share=step.clipped_share,
        kl_threshold=step.kl_threshold,
        own_logprob_mismatch=step.own_logprob_mismatch if mismatch_known else None,
        sequences={origin: _fates(reports) for origin, reports in by_origin.items()},
        divergence={origin: _divergences(reports) for origin, reports in by_origin.items()},
        rejected_batches=_named(arrivals.rejected_batches, names),
        rejected_groups=_named(arrivals.rejected_groups, names),
        unusable_groups=_named(arrivals.unusable_groups, names),
        agreement={_author(author, names): value for author, value in agreements.items()},
        peer_weights={names[author]: weight for author, weight in weights.items()},
        seconds={phase: round(seconds, 4) for phase, seconds in clock.seconds.items()},
    )


def _author(author: bytes, names: Mapping[str, str]) -> str:
    return author.decode() if author in (authors.OWN, authors.PEERS) else names[author.hex()]


def _named(counts: Mapping[str, Counter[str]], names: Mapping[str, str]) -> Reasons:
    return {names[author]: dict(reasons) for author, reasons in counts.items()}


def _fates(reports: Sequence[SequenceReport]) -> Fates:
    counts = Counter(report.fate for report in reports)
    reasons = (report.excluded for report in reports if report.fate == "excluded")
    return Fates(
        trained=counts["trained"],
        filtered=counts["filtered"],
        zero_advantage=counts["zero_advantage"],
        excluded=dict(Counter(reason for reason in reasons if reason is not None)),
    )


def _divergences(reports: Sequence[SequenceReport]) -> dict[Literal["negative", "positive"], Quantiles]:
    negative = [r.divergence for r in reports if r.divergence is not None and r.advantage < 0]
    positive = [r.divergence for r in reports if r.divergence is not None and r.advantage > 0]
    found: dict[Literal["negative", "positive"], Quantiles] = {}
    if negative:
        found["negative"] = _quantiles(negative)
    if positive:
        found["positive"] = _quantiles(positive)
    return found


def _quantiles(values: Sequence[float]) -> Quantiles:
    q10, q25, q50, q75, q90, largest = np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9, 1.0]).tolist()
    return Quantiles(count=len(values), q10=q10, q25=q25, q50=q50, q75=q75, q90=q90, largest=largest)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
