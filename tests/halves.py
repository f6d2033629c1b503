"""Network halves of real nodes in this process, and nodes that answer health's questions as they like."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftis_node.config import NetworkConfig, NodeConfig
from ftis_node.database_thread import DatabaseThread
from ftis_node.identity import Identity, load_or_create_identity, lock_home
from ftis_node.manifest import Run
from ftis_node.network_half import NetworkHalf, Party
from ftis_node.status.snapshot import read_status
from ftis_node.store.network import NetworkStore
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import keep_dialling
from ftis_node.swarm.gossip import Gossip
from ftis_node.swarm.handshake import Reach, Self
from ftis_node.swarm.records import NodeRecord
from ftis_node.swarm.service import SwarmService, bind, start
from ftis_node.swarm.session import Session
from ftis_node.swarm.tls import make_certificate
from ftis_node.types import PeerId
from tests.builders import RUN

Answers = Callable[[Identity], Awaitable[bytes]]


@dataclass
class Half:
    """A relay in all but the process; ``address`` names its peer id."""

    half: NetworkHalf
    home: Path
    address: Address

    @property
    def peer_id(self) -> str:
        assert self.address.peer_id is not None
        return self.address.peer_id.hex()


@contextlib.asynccontextmanager
async def running_half(
    home: Path, *peers: "Half", run: Run = RUN, network: NetworkConfig = NetworkConfig()
) -> AsyncIterator[Half]:
    """A node with a store and a lock of its own, until the end of the block."""
    with lock_home(home):
        database = DatabaseThread(NetworkStore(home))
        store = database.store
        identity = load_or_create_identity(home)
        await database(store.put, "manifest", run.data)
        await database(store.put, "peer_id", identity.peer_id)
        config = NodeConfig(network=network.model_copy(update={"listen": "127.0.0.1:0", "dht": "off"}))
        party = Party(home, identity, run, "", b"")
        half = NetworkHalf(party, config, [peer.address for peer in peers], database)
        bound = await half.start()
        await half.put_of_this_process("learner", "none: this is a relay")
        serving = asyncio.create_task(half.serve())
        try:
            yield Half(half, home, Address(bound.host, bound.port, identity.peer_id))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await half.stop()
            database.close()


@contextlib.asynccontextmanager
async def running_halves(folder: Path, links: Sequence[Sequence[int]], *, run: Run = RUN) -> AsyncIterator[list[Half]]:
    """One node per entry of ``links``, which dials the nodes before it that the entry names, and keeps no others."""
    async with contextlib.AsyncExitStack() as stack:
        halves: list[Half] = []
        for number, dialled in enumerate(links):
            home = folder / f"node-{number}"
            peers = [halves[other] for other in dialled]
            halves.append(
                await stack.enter_async_context(
                    running_half(home, *peers, run=run, network=NetworkConfig(neighbours=0))
                )
            )
        wanted = [len(dialled) + sum(number in other for other in links) for number, dialled in enumerate(links)]
        await until(lambda: all(len(h.half.gossip.sessions) >= n for h, n in zip(halves, wanted, strict=True)))
        await until(lambda: all(_probed(h) >= n for h, n in zip(halves, wanted, strict=True)))
        yield halves


def _probed(half: Half) -> int:
    """How many peers the node has found an address of."""
    return len({entry.peer_id for entry in read_status(half.home).addresses if entry.reached_ms})


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


class _Nothing:
    """Gossip's other side for a node that holds no batches; it learns nothing and charges nobody."""

    async def live(self) -> list[object]:
        return []

    async def addresses(self) -> list[object]:
        return []

    async def learn(self, addresses: object) -> None:
        del addresses


def _stranger(seed: bytes, run: Run = RUN) -> Self:
    return Self(
        identity=Identity.from_seed(seed), certificate=make_certificate(), run=run, version="0.0.9", model="tiny",
        reach=Reach(), listen_port=1, instance=os.urandom(16),
    )  # fmt: skip


async def _connected(session: Session, connected: bool) -> None:
    del session, connected


async def _welcome(record: NodeRecord) -> None:
    del record


@contextlib.asynccontextmanager
async def only_dialling(*peers: Half, seed: bytes = b"n" * 32) -> AsyncIterator[str]:
    """A node that nobody can dial, as behind a NAT: connected with these peers; yields its id."""
    own = _stranger(seed)
    gossip = Gossip(_Nothing(), own.peer_id, NetworkConfig())  # type: ignore[arg-type]

    async def report(address: Address, state: str, retry_in: float | None, peer: PeerId | None) -> None:
        del address, state, retry_in, peer

    async def remembered(address: Address) -> None:
        del address

    dialers = [
        asyncio.create_task(
            keep_dialling(
                peer.address, own, gossip, backoff_max=0.2, report=report, connected=_connected,
                remembered=remembered, admit=_welcome,
            )
        )
        for peer in peers
    ]  # fmt: skip
    try:
        await until(lambda: all(own.peer_id in peer.half.gossip.sessions for peer in peers))
        yield own.peer_id.hex()
    finally:
        for dialer in dialers:
            dialer.cancel()
        await asyncio.gather(*dialers, return_exceptions=True)


@contextlib.asynccontextmanager
async def answering(answers: Answers, *, seed: bytes = b"m" * 32, run: Run = RUN) -> AsyncIterator[Address]:
    """A server with a good certificate and record whose status is whatever ``answers`` makes."""
    own = _stranger(seed, run)

    async def status() -> bytes:
        return await answers(own.identity)

    server, port = await bind(Address("127.0.0.1", 0), own.certificate.server_credentials())
    gossip = Gossip(_Nothing(), own.peer_id, NetworkConfig())  # type: ignore[arg-type]
    await start(server, SwarmService(own, gossip, status, _connected, _welcome))
    try:
        yield Address("127.0.0.1", port, own.peer_id)
    finally:
        await server.stop(grace=0)
