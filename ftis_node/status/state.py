"""What a node does or waits for at this moment, in words: what, since when, until when at most. Pure."""

from __future__ import annotations

from typing import Literal, get_args

from ftis_node.status.snapshot import NodeStatus

Kind = Literal[
    "stopped", "starting", "waiting", "restarting", "relay", "finished", "loading", "measuring", "generating",
    "training", "writing", "other",
]  # fmt: skip
"""States to count nodes by; most are the first word of what the learner says it does."""

Training = Literal["full", "LoRA", "none"]
"""What of its model a node trains; none for a relay."""

NOT_LOADED = "not loaded yet"


def training_of(status: NodeStatus) -> Training | None:
    """None before the model is loaded for the first time."""
    if status.learner.startswith("none"):
        return "none"
    if not status.parameters:
        return None
    return "full" if status.trainable_parameters == status.parameters else "LoRA"


def model_text(status: NodeStatus) -> str:
    """A node's model for people; a relay is what says that it is one, and not what has loaded no model yet."""
    if status.learner.startswith("none"):
        return "relay"
    return status.model or NOT_LOADED


def state_kind(status: NodeStatus) -> Kind:
    if not status.daemon_running:
        return "stopped"
    if status.network:
        return _first_word(status.network)
    if status.learner.startswith("none"):
        return "relay"
    if status.learner == "finished":
        return "finished"
    if status.learner.startswith("died"):
        return "restarting"
    if status.learner != "running":
        return "starting" if status.learner == "starting" else "stopped"
    return _first_word(status.activity)


def _first_word(text: str) -> Kind:
    first = text.partition(" ")[0]
    for kind in get_args(Kind):
        if first == kind:
            return kind  # type: ignore[no-any-return]
    return "other"


def state_text(status: NodeStatus) -> str:
    """For example ``waiting for 2 peers' groups, 14 s, at most 16 s more``."""
    if not status.daemon_running:
        return "stopped"
    if status.network:
        return _timed(status, status.network, status.network_since_ms, status.network_until_ms)
    if status.learner == "running":
        return _timed(status, status.activity, status.activity_since_ms, status.activity_until_ms)
    if status.learner == "finished":
        return status.activity
    if status.learner.startswith("none"):
        return "passing batches on (a relay has no learner)"
    return f"learner {learner_text(status)}"


def learner_text(status: NodeStatus) -> str:
    """How the learner's process is, and when it is started again if it died."""
    if status.learner_until_ms is None:
        return status.learner
    return f"{status.learner} {again(status.learner_until_ms - status.at_ms)}"


def _timed(status: NodeStatus, text: str, since_ms: int | None, until_ms: int | None) -> str:
    if since_ms is not None:
        text += f", {duration(status.at_ms - since_ms)}"
    if until_ms is not None:
        text += f", at most {duration(until_ms - status.at_ms)} more"
    return text


def again(ms: float) -> str:
    """When something is tried again: ``in 14 s``, ``in 0.5 s``, and never in no time at all."""
    if ms <= 0:
        return "at any moment"
    return f"in {max(ms, 100) / 1000:.1f} s" if ms < 1000 else f"in {duration(ms)}"


def duration(ms: float) -> str:
    """``14 s``, ``5 min``, ``3 h``, ``2 days``; what lies in the future by a wrong clock is ``0 s``."""
    seconds = max(0.0, ms / 1000)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{min(seconds / 86_400, 99_999):.0f} days"
