"""The state of one neighbour's stream. Everything in it has a bound."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Protocol

from ftis_node.config import NetworkConfig
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.budget import Budget
from ftis_node.types import BatchName, PeerId
from ftis_node.wire.v1 import swarm_pb2 as pb

BURST_SECONDS = 3.0
CONTROL_FRAMES = 256


class Stream(Protocol):
    """Either end of an Exchange call, as gRPC gives it."""

    async def read(self) -> pb.Frame: ...

    async def write(self, frame: pb.Frame) -> None: ...


@dataclass(frozen=True)
class Neighbour:
    """Who is at the other end of a session. ``direction`` is ``out`` if this node dialled.

    ``dialable`` is where others may reach it, by its own word and by where it was seen to come from.
    ``instance`` is drawn by the peer at each of its starts.
    """

    peer_id: PeerId
    direction: str
    address: str
    address_range: str
    model: str
    version: str
    dialable: tuple[Address, ...] = ()
    dht_addresses: tuple[str, ...] = ()
    tokenizer_fingerprint: bytes = b""
    instance: bytes = b""


class Session:
    """One neighbour, from the hellos to the end of the stream."""

    def __init__(self, neighbour: Neighbour, stream: Stream, config: NetworkConfig) -> None:
        self.neighbour = neighbour
        self.stream = stream
        self.offers: OrderedDict[BatchName, int] = OrderedDict()  # the newest last
        self.incoming: dict[BatchName, bytearray] = {}
        self.asked: dict[BatchName, tuple[int, float]] = {}  # size, deadline
        self.uploads: deque[BatchName] = deque()
        self.announcements: OrderedDict[BatchName, int] = OrderedDict()
        self.announce_at = 0.0
        self.control: deque[pb.Frame] = deque()
        self.wake = asyncio.Event()
        self.closed = asyncio.Event()
        self.close_reason = ""
        self.began_at = time.monotonic()
        self.heard_at = self.began_at
        self.bytes_in = 0
        self.bytes_out = 0
        self.throttled_seconds = 0.0
        self.messages = Budget(config.peer_messages_per_second, burst_seconds=BURST_SECONDS)
        self.budget_in = Budget(config.peer_bytes_per_second, burst_seconds=BURST_SECONDS)
        self.budget_out = Budget(config.peer_bytes_per_second, burst_seconds=BURST_SECONDS)
        self.round_trip_ms: float | None = None
        self.ping: tuple[int, float] | None = None  # nonce, when it was sent
        self.hints_at = -float("inf")

    def close(self, reason: str) -> None:
        if not self.closed.is_set():
            self.close_reason = reason
            self.closed.set()
            self.wake.set()

    def send(self, frame: pb.Frame) -> None:
        """Queue a frame that goes before announcements and chunks; a neighbour that reads none is let go."""
        if len(self.control) >= CONTROL_FRAMES:
            self.close(f"it left {CONTROL_FRAMES} answers unread")
            return
        self.control.append(frame)
        self.wake.set()

    def announce(self, name: BatchName, size: int, at: float) -> None:
        """Tell the neighbour of a batch with the next announcement, at the latest at ``at`` (loop time)."""
        if not self.announcements:
            self.announce_at = at
        self.announcements[name] = size
        self.wake.set()
