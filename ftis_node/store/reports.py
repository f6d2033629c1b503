"""What a round reports: written by the learner, read by health, the demo and the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Whole = Annotated[int, Field(ge=0, lt=2**63)]
"""A count or a time in ms. Reports also come from peers, whose numbers may have any number of digits."""

Seconds = Annotated[float, Field(ge=-1e15, le=1e15)]
"""Finite, so that JSON has a number for it."""

Counts = Annotated[dict[Annotated[str, Field(max_length=64)], Whole], Field(max_length=4096)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SequenceCounts(_Record):
    """Sequences by what became of them, for one origin (own or peers).

    ``arrived`` is generated for own sequences, received and accepted for peers' ones. ``trained``
    counts those that contributed to the gradient; ``filtered`` those that the F-TIS filter dropped;
    ``zero_advantage`` those of groups with equal rewards; ``excluded``, by reason, those of a foreign tokenizer that
    could not be aligned or were left out because of it, those of authors without weight, and those whose claim is not
    to be believed.
    """

    arrived: Whole = 0
    trained: Whole = 0
    filtered: Whole = 0
    zero_advantage: Whole = 0
    excluded: Counts = Field(default_factory=dict)

    def plus(self, other: SequenceCounts) -> SequenceCounts:
        return SequenceCounts(
            arrived=self.arrived + other.arrived,
            trained=self.trained + other.trained,
            filtered=self.filtered + other.filtered,
            zero_advantage=self.zero_advantage + other.zero_advantage,
            excluded=dict(Counter(self.excluded) + Counter(other.excluded)),
        )


class PhaseSeconds(_Record):
    """Where a round's wall-clock time went. ``measuring`` is for what is known of peers' usefulness."""

    generating: Seconds = 0.0
    scoring: Seconds = 0.0
    training: Seconds = 0.0
    waiting: Seconds = 0.0
    measuring: Seconds = 0.0

    def plus(self, other: PhaseSeconds) -> PhaseSeconds:
        return PhaseSeconds(
            generating=self.generating + other.generating,
            scoring=self.scoring + other.scoring,
            training=self.training + other.training,
            waiting=self.waiting + other.waiting,
            measuring=self.measuring + other.measuring,
        )


class Totals(_Record):
    """Sums since the first round, as of the round that carries them.

    ``own_sampled`` counts own groups, ``own_informative`` and ``peer_informative`` those with unequal rewards that took
    a place in a step, ``peer_tokens`` the tokens of peers' completions that were trained on.
    """

    steps: Whole = 0
    skipped_steps: Whole = 0
    generated_tokens: Whole = 0
    own_sampled: Whole = 0
    own_informative: Whole = 0
    peer_informative: Whole = 0
    peer_tokens: Whole = 0
    own: SequenceCounts = SequenceCounts()
    peers: SequenceCounts = SequenceCounts()
    seconds: PhaseSeconds = PhaseSeconds()


class RoundReport(_Record):
    """One finished round. Rewards are means over sequences; ``None`` where there was none.

    ``own_groups`` and ``peer_groups`` took the places of the step; ``own`` and ``own_reward`` are of all own groups.
    """

    round: Whole
    own_groups: Whole
    peer_groups: Whole
    own_sampled: Whole = 0
    own_informative: Whole = 0
    peer_informative: Whole = 0
    peer_tokens: Whole = 0
    stepped: bool
    skipped_reason: str | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    own_reward: float | None = None
    peer_reward: float | None = None
    importance_weight: float | None = None
    truncated_share: float | None = None
    clipped_share: float | None = None
    kl_threshold: float | None = None
    peer_weight: float | None = None
    peer_divergence: float | None = None
    own_logprob_mismatch: float | None = None
    generated_tokens: Whole = 0
    tokens_per_second: float | None = None
    mean_decode_rows: float | None = None
    own: SequenceCounts = SequenceCounts()
    peers: SequenceCounts = SequenceCounts()
    seconds: PhaseSeconds = PhaseSeconds()
    used_authors: Counts = Field(default_factory=dict)
    totals: Totals = Totals()


def add_to_totals(before: Totals, report: RoundReport) -> RoundReport:
    """The report with ``totals`` brought forward from the round before."""
    totals = Totals(
        steps=before.steps + int(report.stepped),
        skipped_steps=before.skipped_steps + int(not report.stepped),
        generated_tokens=before.generated_tokens + report.generated_tokens,
        own_sampled=before.own_sampled + report.own_sampled,
        own_informative=before.own_informative + report.own_informative,
        peer_informative=before.peer_informative + report.peer_informative,
        peer_tokens=before.peer_tokens + report.peer_tokens,
        own=before.own.plus(report.own),
        peers=before.peers.plus(report.peers),
        seconds=before.seconds.plus(report.seconds),
    )
    return report.model_copy(update={"totals": totals})
