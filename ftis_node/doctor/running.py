"""What a running daemon's own state says in place of the checks that would disturb it. Pure."""

from __future__ import annotations

from ftis_node.doctor.findings import DHT, MEMORY, MODEL, STEP, Check, Verdict, failure, ok, warning
from ftis_node.status.snapshot import NodeStatus


def of_daemon(check: Check, status: NodeStatus | None, process: int) -> Verdict:
    """``status`` is None when its store can't be read. Left out: what needs the lock, the store, or the device."""
    left_out = f"left out, because the daemon (process {process}) runs"
    if status is None:
        return warning(left_out)
    if check is DHT:
        joined = status.dht.startswith("on, ") and not status.dht.startswith("on, but")
        return (ok if joined or status.dht == "off" else warning)(f"the daemon says: {status.dht}")
    if status.learner.startswith("none"):
        return ok(f"{left_out}; it is a relay and has no model")
    if status.learner not in ("running", "finished"):
        return failure(f"{left_out}; its learner: {status.learner}", "see the daemon's log")
    last = status.last_round
    if last is None:
        return warning(f"{left_out}; it hasn't finished a round yet: {status.activity}")
    told = f"{left_out}; it has finished round {last.round}"
    if check is MODEL:
        return ok(f"{told} with {status.model}, {status.parameters:,} parameters")
    if check is MEMORY:
        return ok(f"{told}; {status.memory}")
    if check is STEP and last.skipped_reason is not None:
        return warning(f"{told}, which took no step: {last.skipped_reason}")
    return ok(told)
