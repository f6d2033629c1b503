"""One node's health as programs read it: an entry of ``ftis-node health --json``, and ``/status.json``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ftis_node.status.judgement import Judgement
from ftis_node.status.snapshot import NodeStatus


class NodeHealth(BaseModel):
    """Where was asked, what to think of the node and why, and all that is known of it."""

    model_config = ConfigDict(frozen=True)

    asked: str
    level: Literal["healthy", "degraded", "unreachable"]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    status: NodeStatus | None

    @classmethod
    def of(cls, asked: str, status: NodeStatus | None, judgement: Judgement) -> NodeHealth:
        return cls.model_validate(
            {
                "asked": asked,
                "level": judgement.level.name.lower(),
                "reasons": judgement.reasons,
                "notes": judgement.notes,
                "status": status,
            }
        )
