"""Bookkeeping of a round: where its time went, and what became of the sequences."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ftis_node.log import about
from ftis_node.rollout.engine import GenerationStats
from ftis_node.round import MISMATCH_ALARM, OWN
from ftis_node.store import authors
from ftis_node.store.authors import AuthorRound
from ftis_node.store.reports import PhaseSeconds, RoundReport, SequenceCounts, Totals, add_to_totals
from ftis_node.training.collate import TrainingGroup
from ftis_node.training.step import GroupReport, StepReport
from ftis_node.types import BatchName, short_id

log = logging.getLogger(__name__)


class RoundClock:
    """Counts while a round runs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.generated_sequences = 0
        self.received_sequences = 0
        self.generation: list[GenerationStats] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall-clock time to a phase of ``PhaseSeconds``."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - started


def build_report(
    round_number: int, step: StepReport, clock: RoundClock, *, before: Totals, aside: Sequence[TrainingGroup] = ()
) -> RoundReport:
    """One round's report, its totals brought forward from ``before``.

    ``aside`` are own groups that took no place: what is said of own sequences is of all that were sampled.
    """
    placed = [group for group in step.groups if group.origin == OWN]
    own = [*placed, *map(_without_place, aside)]
    peers = [group for group in step.groups if group.origin != OWN]
    tokens = sum(stats.tokens for stats in clock.generation)
    generating = sum(stats.seconds for stats in clock.generation)
    report = RoundReport(
        round=round_number,
        own_groups=len(placed),
        peer_groups=len(peers),
        own_sampled=len(own),
        own_informative=_informative(placed),
        peer_informative=_informative(peers),
        peer_tokens=sum(group.tokens for group in peers),
        stepped=step.stepped,
        skipped_reason=step.skipped_reason,
        loss=step.loss,
        gradient_norm=step.gradient_norm,
        own_reward=_mean_reward(own),
        peer_reward=_mean_reward(peers),
        importance_weight=step.importance_weight,
        truncated_share=step.truncated_share,
        clipped_share=step.clipped_share,
        kl_threshold=step.kl_threshold,
        peer_weight=_mean([group.weight for group in peers]),
        peer_divergence=_mean([group.divergence for group in peers if group.divergence is not None]),
        own_logprob_mismatch=step.own_logprob_mismatch,
        generated_tokens=tokens,
        tokens_per_second=tokens / generating if generating else None,
        mean_decode_rows=sum(s.mean_rows * s.seconds for s in clock.generation) / generating if generating else None,
        own=_counts(own, clock.generated_sequences),
        peers=_counts(peers, clock.received_sequences),
        seconds=PhaseSeconds(
            generating=clock.seconds["generating"],
            scoring=clock.seconds["scoring"] + step.seconds_scoring,
            training=step.seconds_training,
            waiting=clock.seconds["waiting"],
            measuring=clock.seconds["measuring"],
        ),
        used_authors=dict(Counter(short_id(bytes.fromhex(group.origin)) for group in peers)),
    )
    return add_to_totals(before, report)


def count_by_author(
    step: StepReport, agreements: Mapping[bytes, float], *, weighted: bool = False
) -> list[AuthorRound]:
    """What became of each author's sequences in this step, with the agreements measured in this round.

    ``weighted``: authors may weigh differently, and what they weigh is kept.
    """
    by_author: defaultdict[bytes, list[GroupReport]] = defaultdict(list)
    for group in step.groups:
        by_author[authors.OWN if group.origin == OWN else bytes.fromhex(group.origin)].append(group)
    rows = [
        AuthorRound(
            author=author,
            agreement=agreements.get(author),
            sequences=sum(group.sequences for group in groups),
            trained=sum(group.trained for group in groups),
            filtered=sum(group.filtered for group in groups),
            zero_advantage=sum(group.zero_advantage for group in groups),
            excluded=sum(len(group.excluded) for group in groups),
            weight=groups[0].weight if weighted and author != authors.OWN else None,
        )
        for author, groups in by_author.items()
    ]
    if authors.PEERS in agreements:
        rows.append(AuthorRound(authors.PEERS, agreement=agreements[authors.PEERS]))
    return rows


def log_faults(step: StepReport, peers: Sequence[BatchName], *, own: int, round_number: int, untruncated: bool) -> None:
    """Samples whose log-probs are not finite are named, ``peers`` being the batches behind ``own`` own groups.

    Engine and trainer can only be compared where sampling is ``untruncated``.
    """
    extra = about(round_number=round_number)
    for group, sequence in step.offending:
        where = "own" if group < own else f"batch {short_id(peers[group - own])}"
        log.error("log-probs that are not finite: %s, group %d, sequence %d", where, group, sequence, extra=extra)
    mismatch = step.own_logprob_mismatch
    if mismatch is not None and mismatch > MISMATCH_ALARM and untruncated:
        log.warning("engine and trainer disagree by %.3f per token on own samples", mismatch, extra=extra)


def describe(report: RoundReport) -> str:
    """The round as one line of the log."""
    seconds = report.seconds
    reward = "none" if report.own_reward is None else f"{report.own_reward:.3f}"
    measuring = f", measuring {seconds.measuring:.2f} s" if seconds.measuring else ""
    outcome = f"gradient norm {report.gradient_norm:.2f}" if report.stepped else f"no step ({report.skipped_reason})"
    return (
        f"round {report.round}: {report.own_groups} own and {report.peer_groups} peers' groups,"
        f" {report.own_sampled} sampled, reward {reward},"
        f" {outcome}, trained on {report.own.trained} own and {report.peers.trained} peers' sequences, filtered"
        f" {report.own.filtered + report.peers.filtered}; generating {seconds.generating:.2f} s, scoring"
        f" {seconds.scoring:.2f} s, training {seconds.training:.2f} s, waiting {seconds.waiting:.2f} s{measuring}"
    )


def _counts(groups: Sequence[GroupReport], arrived: int) -> SequenceCounts:
    return SequenceCounts(
        arrived=arrived,
        trained=sum(group.trained for group in groups),
        filtered=sum(group.filtered for group in groups),
        zero_advantage=sum(group.zero_advantage for group in groups),
        excluded=dict(Counter(reason for group in groups for reason in group.excluded)),
    )


def _without_place(group: TrainingGroup) -> GroupReport:
    """As the trainer would report a group whose rewards are all equal."""
    size = len(group.sequences)
    reward = sum(sequence.reward for sequence in group.sequences) / size
    return GroupReport(group.origin, size, 0, 0, zero_advantage=size, divergence=None, mean_reward=reward)


def _informative(groups: Sequence[GroupReport]) -> int:
    return sum(group.zero_advantage < group.sequences for group in groups)


def _mean_reward(groups: Sequence[GroupReport]) -> float | None:
    return _mean([group.mean_reward for group in groups])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
