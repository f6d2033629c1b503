"""Means over seeds with a 95 % interval, and paired differences. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, with Student's interval; without one where there is a single seed."""

    mean: float
    low: float
    high: float
    count: int

    def in_points(self, *, signed: bool = False) -> str:
        """As points of a hundred: ``93.1 ± 0.8``."""
        mean = f"{100 * self.mean:+.1f}" if signed else f"{100 * self.mean:.1f}"
        return mean if self.count < 2 else f"{mean} ± {100 * (self.high - self.mean):.1f}"

    def plain(self, digits: int = 2) -> str:
        mean = f"{self.mean:.{digits}f}"
        return mean if self.count < 2 else f"{mean} ± {self.high - self.mean:.{digits}f}"


def interval(values: Sequence[float]) -> Interval:
    """Raises ValueError when there is none."""
    if not values:
        raise ValueError("no values: nothing was measured")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, 1)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return Interval(mean, mean - half, mean + half, len(values))


def paired(values: Sequence[float], reference: Sequence[float]) -> Interval:
    """Of the differences seed by seed."""
    return interval([value - other for value, other in zip(values, reference, strict=True)])
