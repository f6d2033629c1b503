"""What training together gained over training alone: how soon a node has what it would have reached alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pydantic import BaseModel, ConfigDict

from ftis_node.store.reports import RoundReport

SMOOTHING = 5
"""Rounds that a reward is the mean of: one round's is mostly chance."""


class Effort(BaseModel):
    """Until a reward was reached: work of the learner in seconds, waiting included, and own tokens."""

    model_config = ConfigDict(frozen=True)

    rounds: int
    seconds: float
    own_tokens: int


class RewardAt(BaseModel):
    """Mean reward of a round's own samples, and the learner's seconds until its end."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    reward: float


class Gain(BaseModel):
    """``reward`` is the mean reward of own samples that the node ends with alone, both efforts are until it had that.

    ``together`` is None where it never had. Groups with information that took a place in a step, a minute of work:
    ``alone_a_minute`` alone, ``together_a_minute`` together, own and peers'.
    """

    model_config = ConfigDict(frozen=True)

    reward: float
    alone: Effort
    together: Effort | None
    alone_a_minute: float
    together_a_minute: float


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of the last ``SMOOTHING`` values up to each."""
    windows = [values[max(0, end - SMOOTHING) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def rewards_over_time(rounds: Sequence[RoundReport]) -> tuple[RewardAt, ...]:
    """Of all rounds, oldest first; without those in which nothing was sampled."""
    ends = accumulate(map(_seconds, rounds))
    return tuple(
        RewardAt(seconds=end, reward=report.own_reward)
        for report, end in zip(rounds, ends, strict=True)
        if report.own_reward is not None
    )


def gain(alone: Sequence[RoundReport], together: Sequence[RoundReport]) -> Gain | None:
    """Of all rounds of both, oldest first. None where a phase has no round with own samples."""
    ends = smooth([report.own_reward for report in alone if report.own_reward is not None])
    if not ends or not together:
        return None
    reached = _until(alone, ends[-1])
    assert reached is not None  # at its end it is
    return Gain(
        reward=ends[-1],
        alone=reached,
        together=_until(together, ends[-1]),
        alone_a_minute=_informative_a_minute(alone),
        together_a_minute=_informative_a_minute(together),
    )


def _until(rounds: Sequence[RoundReport], reward: float) -> Effort | None:
    """Not before ``SMOOTHING`` rounds are done, if there are so many."""
    sampled = [report for report in rounds if report.own_reward is not None]
    least = min(SMOOTHING, len(sampled))
    means = smooth([report.own_reward for report in sampled if report.own_reward is not None])
    for count, (report, mean) in enumerate(zip(sampled, means, strict=True), start=1):
        if count >= least and mean >= reward:
            done = [other for other in rounds if other.round <= report.round]
            return Effort(
                rounds=len(done),
                seconds=sum(map(_seconds, done)),
                own_tokens=sum(other.generated_tokens for other in done),
            )
    return None


def _informative_a_minute(rounds: Sequence[RoundReport]) -> float:
    groups = sum(report.own_informative + report.peer_informative for report in rounds)
    minutes = sum(map(_seconds, rounds)) / 60
    return groups / minutes if minutes > 0 else 0.0


def _seconds(report: RoundReport) -> float:
    return float(sum(report.seconds.model_dump().values()))
