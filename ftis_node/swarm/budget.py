"""How much a neighbour may send or be sent: a bucket that fills at a steady rate."""

from __future__ import annotations


class Budget:
    """Takes any amount at once and says how long to wait before the next one. Times in seconds.

    What goes beyond the bucket is a debt that the wait pays off, so that a single large message passes and the
    average keeps to the rate.
    """

    def __init__(self, rate: float, *, burst_seconds: float) -> None:
        self._rate = rate
        self._most = rate * burst_seconds
        self._level = self._most
        self._at = 0.0

    def spend(self, amount: float, now: float) -> float:
        """Seconds to wait until the budget is even again; 0 while it lasts."""
        if self._at:
            self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
        self._level -= amount
        return max(0.0, -self._level / self._rate)
