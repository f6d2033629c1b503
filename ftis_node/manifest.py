"""The run manifest: what everybody in a run has in common, named by its hash.

A fetched manifest is hostile input: it is bounded in size, every value has a ceiling here, and
``check_ceilings`` applies the party's own. It names data by hash and never a path.
"""

from __future__ import annotations

import hashlib
import struct
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from ftis_node.config import CeilingsConfig
from ftis_node.errors import ConfigError
from ftis_node.sections import Section, parse_section
from ftis_node.types import PeerId, RunId, SamplingParams

MAX_MANIFEST_BYTES = 64 * 1024
MAX_GROUP_SIZE = 1024
ASSIGNMENT_DOMAIN = b"ftis-node/assignment/1"


Scalar = bool | int | float | Annotated[str, Field(max_length=4000)]
Parameter = Scalar | Annotated[tuple[Scalar, ...], Field(max_length=64)]
"""A parameter of a task: as small as a hostile manifest may make it."""


class TaskSpec(Section):
    """One task: its name, its parameters, and the size and hash of the data they give."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9:_.-]{0,63}$", description="as in `ftis-node init --task`")
    parameters: dict[str, Parameter] = Field(default_factory=dict, max_length=32, description="the task's own")
    size: int = Field(ge=1, le=10**12, description="items; checked against this machine's copy")
    data_hash: str = Field(pattern=r"^[0-9a-f]{64}$", description="of all items; checked likewise")


class SamplingSpec(Section):
    """The distribution that everybody samples from; ``top_k = 0`` and ``top_p = 1.0`` are off."""

    temperature: float = Field(default=1.0, gt=0.01, le=100, description="divides the logits, also in training")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability to sample from; 1.0 is off")
    top_k: int = Field(default=0, ge=0, le=10**6, description="most likely tokens to sample from; 0 is off")

    @property
    def untruncated(self) -> bool:
        """Whether completions come from the full distribution, whose log-probs the trainer computes."""
        return self.top_k == 0 and self.top_p == 1.0

    def params(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_p, self.top_k)


class GroupSizeRange(Section):
    """Smallest and largest group, so that weak machines can take part."""

    smallest: int = Field(ge=2, le=MAX_GROUP_SIZE, description="fewest completions of a prompt")
    largest: int = Field(
        ge=2,
        le=MAX_GROUP_SIZE,
        description="most completions of a prompt; what a node samples if it doesn't say otherwise",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.smallest > self.largest:
            raise ValueError(f"smallest = {self.smallest} must not be above largest = {self.largest}")
        return self


class LimitsSpec(Section):
    """Limits in local tokens of the author, and on how long a batch lives."""

    prompt_tokens: int = Field(default=1024, ge=1, le=1_000_000, description="longest prompt")
    completion_tokens: int = Field(default=1024, ge=1, le=1_000_000, description="longest completion")
    max_age_seconds: float = Field(
        default=1800, ge=1, le=7 * 86_400, description="how long a batch may be used and passed on after it was made"
    )
    clock_skew_seconds: float = Field(
        default=30, ge=0, le=3600, description="how far a batch may be from the future, and beyond its age"
    )


class AssignmentSpec(Section):
    """Prompts are assigned by hash: ``quota`` slots per peer in every window."""

    window_seconds: int = Field(default=600, ge=1, le=7 * 86_400, description="length of a window")
    quota: int = Field(default=4096, ge=1, le=10**6, description="prompts that a node may use in a window")


class PeerList(Section):
    """Only these peers take part: 64 hex digits each."""

    peers: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = Field(min_length=1, max_length=1000)


class AdmissionKey(Section):
    """Whoever holds an invitation signed by this key takes part (``ftis-node invite``)."""

    admission_key: str = Field(pattern=r"^[0-9a-f]{64}$")


def _kind_of_membership(value: Any) -> str | None:
    """By which a membership is told apart before it is validated; None for what is none of them."""
    if value == "open":
        return "open"
    if isinstance(value, PeerList) or (isinstance(value, dict) and "peers" in value):
        return "list"
    if isinstance(value, AdmissionKey) or (isinstance(value, dict) and "admission_key" in value):
        return "invitation"
    return None


Membership = Annotated[
    Annotated[Literal["open"], Tag("open")]
    | Annotated[PeerList, Tag("list")]
    | Annotated[AdmissionKey, Tag("invitation")],
    Discriminator(
        _kind_of_membership,
        custom_error_type="membership",
        custom_error_message=(
            'must be "open", { peers = ["64 hex digits", ...] } or { admission_key = "64 hex digits" }'
        ),
    ),
]


class RunManifest(Section):
    """The parsed ``run.toml``."""

    version: Literal[1] = Field(default=1, description="of this format")
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.-]{0,63}$", description="for people")
    tasks: tuple[TaskSpec, ...] = Field(min_length=1, max_length=32)
    group_size: GroupSizeRange = GroupSizeRange(smallest=8, largest=8)
    sampling: SamplingSpec = SamplingSpec()
    limits: LimitsSpec = LimitsSpec()
    assignment: AssignmentSpec = AssignmentSpec()
    membership: Membership = Field(default="open", description="who may take part")

    @field_validator("group_size", mode="before")
    @classmethod
    def _one_number(cls, value: Any) -> Any:
        if not isinstance(value, int):
            return value
        if not 2 <= value <= MAX_GROUP_SIZE:
            raise ValueError(f"must be from 2 to {MAX_GROUP_SIZE}: one completion alone has no baseline")
        return {"smallest": value, "largest": value}

    @model_validator(mode="after")
    def _distinct_tasks(self) -> Self:
        names = [task.name for task in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError("tasks: every task needs a name of its own")
        return self

    @property
    def group_sizes(self) -> tuple[int, int]:
        """Smallest and largest allowed number of completions in a group."""
        return self.group_size.smallest, self.group_size.largest


@dataclass(frozen=True)
class Run:
    """A manifest together with the bytes that it was read from, which name it."""

    manifest: RunManifest
    data: bytes

    @cached_property
    def run_id(self) -> RunId:
        return RunId(hashlib.sha256(self.data).digest())

    def window(self, created_at_ms: int) -> int:
        """The assignment window that a batch created at this time draws from."""
        return created_at_ms // (self.manifest.assignment.window_seconds * 1000)

    def window_begins_ms(self, window: int) -> int:
        """When a window begins, in ms since the Unix epoch."""
        return window * self.manifest.assignment.window_seconds * 1000

    def task_for_slot(self, slot: int) -> TaskSpec:
        """Slots go round the tasks in their order."""
        return self.manifest.tasks[slot % len(self.manifest.tasks)]

    def assigned_index(self, peer_id: PeerId, window: int, slot: int) -> int:
        """The item that the peer must use for this slot: nobody picks easy prompts.

        SHA-256(domain, run_id, peer_id, window, slot) mod task size, with 64-bit big-endian numbers.
        """
        packed = struct.pack(">QQ", window, slot)
        digest = hashlib.sha256(ASSIGNMENT_DOMAIN + self.run_id + peer_id + packed).digest()
        return int.from_bytes(digest, "big") % self.task_for_slot(slot).size


def parse_run(data: bytes, *, source: str) -> Run:
    """Parse a manifest's bytes; ConfigError names the key, the value and what is allowed."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise ConfigError(f"{source}: {len(data)} bytes; a run manifest has at most {MAX_MANIFEST_BYTES}")
    try:
        content = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error
    return Run(parse_section(RunManifest, content, source=source), data)


def load_run(path: Path) -> Run:
    """Read ``run.toml``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    return parse_run(data, source=str(path))


def check_ceilings(run: Run, ceilings: CeilingsConfig) -> None:
    """Refuse a manifest that asks more of this machine than its owner allows."""
    manifest = run.manifest
    for key, value, ceiling in (
        ("limits.prompt_tokens", manifest.limits.prompt_tokens, ceilings.prompt_tokens),
        ("limits.completion_tokens", manifest.limits.completion_tokens, ceilings.completion_tokens),
        ("group_size", manifest.group_sizes[1], ceilings.group_size),
    ):
        if value > ceiling:
            section_key = key.rpartition(".")[2]
            raise ConfigError(
                f"run manifest: {key} = {value} is above this node's ceiling of {ceiling}"
                f" (raise it with --set ceilings.{section_key}={value})"
            )
