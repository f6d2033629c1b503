"""Where the time of rounds went, and how many groups a minute there was something to learn from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ftis_node.store.reports import PhaseSeconds, RoundReport, Whole

Share = Annotated[float, Field(ge=0, le=1)] | None
PerMinute = Annotated[float, Field(ge=0, le=1e15)] | None


class Pace(BaseModel):
    """Shares of the time of the newest rounds, and informative groups that took places, a minute of wall-clock time.

    ``None`` where there is nothing to work it out from.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    rounds: Whole = 0
    generating: Share = None
    scoring: Share = None
    training: Share = None
    waiting: Share = None
    measuring: Share = None
    own_informative: PerMinute = None
    peer_informative: PerMinute = None

    def shares(self) -> str:
        """In words; empty where nothing is known."""
        phases = ("generating", "scoring", "training", "waiting", "measuring")
        known = [(phase, getattr(self, phase)) for phase in phases]
        return ", ".join(f"{phase} {share:.0%}" for phase, share in known if share is not None)

    def groups(self) -> str:
        """In words; empty where nothing is known."""
        if self.own_informative is None or self.peer_informative is None:
            return ""
        return f"{self.own_informative:.1f} own and {self.peer_informative:.1f} peers' a minute"


def pace_of(rounds: Sequence[tuple[RoundReport, int]]) -> Pace:
    """Of reports with the time (ms) of each, oldest first. From the first to the last of these times others count."""
    spent = PhaseSeconds()
    for report, _ in rounds:
        spent = spent.plus(report.seconds)
    phases = spent.model_dump()
    total = sum(phases.values())
    shares = {phase: seconds / total for phase, seconds in phases.items()} if total > 0 else {}
    minutes = (rounds[-1][1] - rounds[0][1]) / 60_000 if rounds else 0.0
    rates = {}
    if minutes > 0:
        later = [report for report, _ in rounds[1:]]
        rates = {
            "own_informative": sum(report.own_informative for report in later) / minutes,
            "peer_informative": sum(report.peer_informative for report in later) / minutes,
        }
    return Pace(rounds=len(rounds), **shares, **rates)
