"""What passes between ``doctor`` and the processes in which it runs what may hang, crash or be killed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, TypeAdapter

from ftis_node.config import NodeConfig
from ftis_node.doctor.findings import Verdict

VERDICT = TypeAdapter(Verdict)
"""One line of JSON per check."""


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceRequest(_Request):
    """The first line to the process of the model: its answer is one verdict."""

    config: NodeConfig


class ModelRequest(_Request):
    """The second line: its answer is a verdict for each of ``findings.MODEL_CHECKS``."""

    home: str
    manifest: str


class DhtRequest(_Request):
    """The only line to the process of the DHT: its answer is one verdict. ``peers`` are multiaddresses of each."""

    manifest: str
    listen: str
    peers: tuple[tuple[str, ...], ...]
