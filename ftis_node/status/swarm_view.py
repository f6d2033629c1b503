"""The document that ``ftis-node health --json`` prints; docs/health.md describes it, and a test holds the two together.

What nodes say of themselves and of each other is their word: it is shown with who says it, and proves nothing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ftis_node.errors import NoAnswer
from ftis_node.status.snapshot import NodeStatus
from ftis_node.status.state import Training

DOCUMENT_SCHEMA = 2

LevelName = Literal["healthy", "degraded", "unreachable"]
Reach = Literal["answers", "behind NAT", "no answer", "not asked"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


Failure = Literal[NoAnswer, "another identity", "unusable answer"]
"""Why a node that was asked is not in the document with its own word."""


class SeenByOthers(_Part):
    """What the other nodes that answered say of one."""

    asked: int = Field(description="other nodes that answered")
    connected_to: int = Field(description="of these, how many have a connection with it")
    dialled_by: int = Field(description="of these, how many dialled it: from there it can be reached")
    last_contact_seconds: float | None = Field(description="since anyone heard from it")
    score: float | None = Field(description="median of the scores that they give it")
    model: str = Field(description="of its records; empty for a relay")
    version: str
    batches_per_minute: float = Field(
        description="made by it in the last five minutes, by the median of those it reached"
    )
    accepted_groups: int = Field(description="groups of it that passed the checks, over all of them")
    rejected_groups: int
    sequences: int = Field(description="sequences of it that entered their steps")
    trained: int = Field(description="of these, those that contributed to a gradient")
    filtered: int = Field(description="of these, those that the F-TIS filter dropped")
    helps: int = Field(description="nodes by whose measurements its samples help them")
    harms: int
    unknown: int = Field(description="nodes that trained on it and can't tell (yet)")


class NodeView(_Part):
    """One node: where it was asked, what it says, and what the others say of it."""

    asked: str = Field(description="the home or the address; empty where only others know the node")
    named: bool = Field(description="whether the command line named it, or the home is its own")
    peer_id: str | None = Field(description="proved by the node where reach is answers; else by others' word")
    reach: Reach
    level: LevelName
    reasons: tuple[str, ...] = Field(description="why the level isn't better")
    failure: Failure | None = Field(default=None, description="why it did not answer here, for programs")
    notes: tuple[str, ...] = Field(description="what it says of others")
    state: str = Field(description="what it does or waits for, since when, until when")
    training: Training | None = Field(description="none for a relay")
    bytes_in: int | None = Field(description="from all its peers together")
    bytes_out: int | None
    clock_ahead_seconds: float | None = Field(description="its clock compared with this machine's")
    seen: SeenByOthers | None = Field(description="null where nobody else was asked")
    status: NodeStatus | None = Field(description="the node's whole answer; in a swarm its peers are those connected")


class Partition(_Part):
    """Nodes of one run that are connected with each other, directly or through others."""

    run_id: str
    nodes: tuple[str, ...] = Field(description="peer ids")


class SwarmSummary(_Part):
    """All nodes together."""

    level: LevelName
    reasons: tuple[str, ...]
    answered: int
    behind_nat: int = Field(description="don't answer here, but others have a connection with them")
    no_answer: int = Field(description="addresses that were asked in vain, and nobody is connected there")
    known_by_name: int = Field(description="ids that nodes list, without a connection")
    states: dict[str, int] = Field(description="nodes by what they do")
    models: dict[str, int] = Field(description="relay for a relay, not loaded yet before a learner has its model")
    versions: dict[str, int]
    runs: dict[str, int]
    tokenizers: dict[str, int] = Field(description="by the first 12 digits of the fingerprint")
    batches_per_minute: float
    accepted_groups: int
    rejected_groups: int
    rejected_share: float | None = Field(description="of the groups that nodes checked")
    rejections: dict[str, int] = Field(description="refused batches and groups, by reason")
    left_out: dict[str, int] = Field(description="those that were not used without anyone's fault, by reason")
    partitions: tuple[Partition, ...] = Field(description="the largest first")
    swarm_helps: int = Field(description="nodes by whose measurements all peers' samples together help them")
    swarm_harms: int
    swarm_unknown: int


class Bounds(_Part):
    """How far a walk may go, and how far it went."""

    max_nodes: int
    timeout_seconds: float
    node_seconds: float = Field(description="one node has so long to answer")
    peers_per_node: int = Field(description="of a node's peers so many are taken in, those connected first")
    asked: int
    stopped_by: Literal["nodes", "time"] | None
    not_asked: int = Field(description="peers with an address that were not asked")


class HealthDocument(_Part):
    """One answer of ``ftis-node health``."""

    schema_version: int = DOCUMENT_SCHEMA
    asked_at_ms: int
    nodes: tuple[NodeView, ...]
    swarm: SwarmSummary | None = Field(description="null where no swarm was walked")
    bounds: Bounds | None
