"""What to think of a swarm's state, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ftis_node.status.judgement import Level
from ftis_node.status.swarm_view import NodeView, Partition

DEGRADED_SHARE = 0.1
NO_RUN = "none yet"


def judge_swarm(
    views: Sequence[NodeView], runs: Mapping[str, int], partitions: Sequence[Partition]
) -> tuple[Level, list[str]]:
    """How the swarm is. One stranger's trouble is none of the swarm's; many nodes' is. So what is apart from
    the most nodes counts where a named node is among it, or more than a tenth of those that answered: else anybody
    could split any swarm by a node that keeps to itself.
    """
    answered = {view.peer_id for view in views if view.reach == "answers"}
    if not answered:
        return Level.UNREACHABLE, ["no node answers", *(f"{v.asked}: {v.reasons[0]}" for v in views if v.named)]
    few = DEGRADED_SHARE * len(answered)
    reasons = []
    named_runs = {view.status.run_id or NO_RUN for view in views if view.named and view.status is not None}
    others = list(runs)[1:]  # the run of most nodes is the first
    if sum(runs[run] for run in others) > few or named_runs & set(others):
        mixed = ", ".join(f"{count} in {run[:12]}" for run, count in runs.items())
        reasons.append(f"nodes of {len(runs)} runs are mixed: {mixed}")
    named = {view.peer_id for view in views if view.named}
    for run_id in runs:
        sizes = [len(part.nodes) for part in partitions if part.run_id == run_id]
        apart = _apart(run_id, partitions, answered)
        if len(apart & answered) > few or named & apart:
            parts = " and ".join(map(str, sizes[:5])) + (" and more" if len(sizes) > 5 else "")
            reasons.append(f"run {run_id[:12]} is split into {len(sizes)} parts of {parts} nodes without a connection")
    for view in views:
        if view.named and view.level != "healthy":
            reasons.append(f"{view.asked} is {view.level}: {view.reasons[0]}")
    ill = sum(view.level != "healthy" for view in views if view.reach == "answers")
    if ill > few:
        reasons.append(f"{ill} of {len(answered)} nodes are not healthy")
    return (Level.DEGRADED if reasons else Level.HEALTHY), reasons


def _apart(run_id: str, partitions: Sequence[Partition], answered: Set[str | None]) -> set[str]:
    """The nodes of a run outside the part in which most answered: an invented node makes no part large."""
    parts = sorted(
        (set(part.nodes) for part in partitions if part.run_id == run_id), key=lambda part: -len(part & answered)
    )
    return set().union(*parts[1:])
