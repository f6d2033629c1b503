"""What gossip asks of the node that it works for; ``ftis_node/exchange.py`` answers."""

from __future__ import annotations

from typing import Protocol

from ftis_node.swarm.addresses import Address
from ftis_node.swarm.session import Neighbour
from ftis_node.types import BatchName, PeerId


class Exchange(Protocol):
    """All may wait for the store, and none for the network."""

    async def live(self) -> list[tuple[BatchName, int]]:
        """Name and size of every batch that may be passed on, newest first."""
        ...

    async def unknown(self, names: list[BatchName]) -> set[BatchName]:
        """Those that the node has never seen."""
        ...

    async def load(self, name: BatchName) -> bytes | None:
        """The encoded batch."""
        ...

    async def deliver(self, name: BatchName, data: bytes, neighbour: Neighbour) -> bool:
        """Verify and keep what a neighbour sent; whether it may be passed on."""
        ...

    async def addresses(self) -> list[tuple[PeerId, str]]:
        """Where peers can be dialled that the node found there itself."""
        ...

    async def learn(self, addresses: list[Address]) -> None:
        """A neighbour's hints where others can be dialled."""
        ...

    async def twin(self, sealed: bytes) -> None:
        """A neighbour shows what may be the record of a second daemon with this node's identity."""
        ...

    async def fault(self, neighbour: Neighbour, reason: str, detail: str) -> None:
        """A neighbour broke the protocol."""
        ...
