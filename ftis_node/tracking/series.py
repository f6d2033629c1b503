"""A finished round as numbers with names, the same for every tracker. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ftis_node.store.reports import RoundReport, SequenceCounts


@dataclass(frozen=True, slots=True)
class Point:
    """One round: when it was finished (seconds since the Unix epoch), and what is known of it."""

    round: int
    at_seconds: float
    values: dict[str, float]


def point_of(report: RoundReport, at_ms: int) -> Point:
    """Names are those of /metrics without ``ftis_``, in groups. What isn't known, or isn't finite, is left out."""
    values = {
        "reward/own_reward": report.own_reward,
        "reward/peer_reward": report.peer_reward,
        "training/loss": report.loss,
        "training/gradient_norm": report.gradient_norm,
        "training/importance_weight": report.importance_weight,
        "training/truncated_share": report.truncated_share,
        "training/clipped_share": report.clipped_share,
        "training/kl_threshold": report.kl_threshold,
        "training/peer_weight": report.peer_weight,
        "training/peer_divergence": report.peer_divergence,
        "training/own_logprob_mismatch": report.own_logprob_mismatch,
        "training/stepped": float(report.stepped),
        "generation/generated_tokens": float(report.generated_tokens),
        "generation/tokens_per_second": report.tokens_per_second,
        "generation/decode_rows": report.mean_decode_rows,
        "groups/own": float(report.own_groups),
        "groups/peers": float(report.peer_groups),
        "groups/own_sampled": float(report.own_sampled),
        "groups/own_informative": float(report.own_informative),
        "groups/peer_informative": float(report.peer_informative),
        **{f"phase_seconds/{phase}": seconds for phase, seconds in report.seconds.model_dump().items()},
        **_sequences("own", report.own),
        **_sequences("peers", report.peers),
    }
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return Point(report.round, at_ms / 1000, known)


def _sequences(origin: str, counts: SequenceCounts) -> dict[str, float]:
    return {
        f"sequences/{origin}_arrived": float(counts.arrived),
        f"sequences/{origin}_trained": float(counts.trained),
        f"sequences/{origin}_filtered": float(counts.filtered),
        f"sequences/{origin}_zero_advantage": float(counts.zero_advantage),
        f"sequences/{origin}_excluded": float(sum(counts.excluded.values())),
    }
