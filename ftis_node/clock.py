"""The wall clock, in the one unit that everything here uses."""

import time


def now_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
