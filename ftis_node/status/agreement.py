"""Does a source of samples help? The mean of measured agreements, with an interval. Pure.

One agreement is the cosine of the gradient from an author's samples with the gradient on own held-out prompts. What is
claimed of it rests on a 95 % interval for its mean over the measurements, and on nothing else: a reward that rises
could have risen without the author.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

Verdict = Literal["helps", "harms", "unknown"]

FEWEST = 4
"""With fewer measurements an interval says more about Student's distribution than about the peer."""

# 97.5 % quantiles of Student's t distribution for 1, 2, … degrees of freedom.
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Agreement(BaseModel):
    """The mean cosine over ``measured`` rounds and its 95 % interval; ``None`` where it can't be said."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    measured: int = Field(ge=0)
    mean: float | None = Field(default=None, ge=-1.001, le=1.001)
    low: float | None = None
    high: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> Verdict:
        """``helps`` or ``harms`` only where the whole interval lies on one side of zero."""
        if self.low is not None and self.low > 0:
            return "helps"
        if self.high is not None and self.high < 0:
            return "harms"
        return "unknown"


def agreement_of(measured: int, total: float, squares: float) -> Agreement:
    """From the number of measurements, their sum and the sum of their squares."""
    if measured == 0:
        return Agreement(measured=0)
    mean = total / measured
    if measured < FEWEST:
        return Agreement(measured=measured, mean=mean)
    variance = max(0.0, squares - measured * mean * mean) / (measured - 1)
    freedom = measured - 1
    quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else 1.96 + 2.5 / freedom
    half = quantile * math.sqrt(variance / measured)
    return Agreement(measured=measured, mean=mean, low=mean - half, high=mean + half)
