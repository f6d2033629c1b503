"""The node's place in the swarm: whom it dials, who may connect, and what it remembers of peers.

Configured peers are dialled for as long as the node runs. Beyond them the node keeps up a number of
connections from the addresses that it knows: from earlier runs, from where peers were seen to come from, and
from neighbours' hints. So it finds back into its swarm even if all the peers it was started with are gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable

import grpc

from ftis_node.admission import why_not_a_member
from ftis_node.clock import now_ms
from ftis_node.database_thread import DatabaseThread
from ftis_node.dht import DhtMember
from ftis_node.errors import WireError
from ftis_node.log import about
from ftis_node.store.peers import Traffic
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import dial_once, fetch_run, keep_dialling
from ftis_node.swarm.gossip import Gossip
from ftis_node.swarm.handshake import Self
from ftis_node.swarm.peers import Dialable, Dialled, Score, whom_to_dial, whom_to_leave
from ftis_node.swarm.records import NodeRecord
from ftis_node.swarm.session import Session
from ftis_node.types import PeerId, short_id
from ftis_node.wire.v1 import swarm_pb2 as pb

log = logging.getLogger(__name__)

NEIGHBOUR_SECONDS = 3.0
TRAFFIC_SECONDS = 2.0
PROBES_AT_ONCE = 4
REMEMBERED_INSTANCES = 1_000
STARTS_REMEMBERED = 8


class Membership:
    """One per node, for as long as it runs."""

    def __init__(
        self,
        database: DatabaseThread,
        own: Self,
        gossip: Gossip,
        peers: list[Address],
        dht: DhtMember | None,
        on_twin: Callable[[], None],
    ) -> None:
        self._on_twin = on_twin
        self._instances: OrderedDict[PeerId, OrderedDict[bytes, bytes]] = OrderedDict()
        self._dht = dht
        self._database = database
        self._peers = database.store.peers
        self._own = own
        self._gossip = gossip
        self._network = gossip.config
        self._configured = peers
        self._dialling: set[asyncio.Task[None]] = set()
        self._chosen: set[PeerId] = set()
        self._probing = asyncio.Semaphore(PROBES_AT_ONCE)
        self._probes: set[asyncio.Task[None]] = set()
        self._rng = random.Random()

    async def run(self) -> None:
        """Dial, count and probe until cancelled."""
        tasks = [asyncio.create_task(self._neighbours_forever()), asyncio.create_task(self._traffic_forever())]
        tasks.append(asyncio.create_task(self._refresh_forever()))
        tasks += [asyncio.create_task(self._keep(address)) for address in self._configured]
        if self._dht is not None:
            tasks.append(asyncio.create_task(self._dht.run()))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, *self._dialling, *self._probes):
                task.cancel()
            await asyncio.gather(*tasks, *self._dialling, *self._probes, return_exceptions=True)

    # --- who may connect --------------------------------------------------------------------

    async def admit(self, record: NodeRecord) -> str | None:
        """Why a peer that has proved its identity is refused; None if it is welcome."""
        if record.peer_id == self._own.peer_id:
            self._on_twin()
            return "a second daemon runs with the same identity: stop one of them"
        if self._is_twin(record):
            log.warning(
                "two daemons run with the identity of %s", short_id(record.peer_id), extra=about(peer=record.peer_id)
            )
            await self._database(self._peers.twin, record.peer_id)
        banned = await self._database(self._peers.banned, record.peer_id)
        if banned is None:
            return why_not_a_member(self._own.run, record.peer_id, record.membership, now_ms=now_ms())
        until_ms, reason = banned
        return f"you are banned for {max(0, until_ms - now_ms()) / 60_000:.0f} more minutes: {reason}"

    def _is_twin(self, record: NodeRecord) -> bool:
        """Whether an instance of a peer comes back after another one of it had come."""
        instances = self._instances.setdefault(record.peer_id, OrderedDict())
        self._instances.move_to_end(record.peer_id)
        while len(self._instances) > REMEMBERED_INSTANCES:
            self._instances.popitem(last=False)
        comes_back = record.instance in list(instances)[:-1]
        instances[record.instance] = record.sealed
        instances.move_to_end(record.instance)
        if len(instances) > STARTS_REMEMBERED:
            instances.popitem(last=False)
        return comes_back

    def _show_twin(self, session: Session) -> None:
        """Show a peer the last hello of another instance of it: proof of a twin if that began after this one."""
        instances = self._instances.get(session.neighbour.peer_id, OrderedDict())
        others = [sealed for instance, sealed in instances.items() if instance != session.neighbour.instance]
        if others:
            session.send(pb.Frame(twin=pb.Twin(record=others[-1])))

    def banned(self, peer: PeerId, reason: str) -> None:
        """End the connection with a peer that was just banned."""
        session = self._gossip.sessions.get(peer)
        if session is not None:
            session.close(f"banned: {reason}")

    async def connected(self, session: Session, connected: bool) -> None:
        """A session began or ended."""
        neighbour = session.neighbour
        if not connected:
            await self._count_traffic([session])
            await self._database(self._peers.disconnected, neighbour.peer_id)
            return
        await self._database(
            self._peers.connected, neighbour.peer_id, address=neighbour.address, direction=neighbour.direction,
            model=neighbour.model, version=neighbour.version, tokenizer_fingerprint=neighbour.tokenizer_fingerprint,
        )  # fmt: skip
        self._show_twin(session)
        if self._dht is not None:
            self._dht.meet(neighbour.dht_addresses)
        if neighbour.dialable:
            targets = [(neighbour.peer_id, address.target) for address in neighbour.dialable]
            await self._database(self._peers.learn_addresses, targets)
            probe = asyncio.create_task(self._probe(neighbour.dialable))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, addresses: tuple[Address, ...]) -> None:
        """Find out where a neighbour can be dialled, so that others may be told."""
        async with self._probing:
            for address in addresses:
                try:
                    await fetch_run(address, self._own.run.run_id)
                except (TimeoutError, grpc.aio.AioRpcError, WireError):
                    log.debug("%s can't be reached from here", address)
                else:
                    assert address.peer_id is not None
                    await self._database(self._peers.address_reached, address.peer_id, address.target)

    # --- dialling ---------------------------------------------------------------------------

    async def _keep(self, address: Address) -> None:
        await keep_dialling(
            address, self._own, self._gossip, backoff_max=self._network.dial_backoff_max, report=self._report,
            connected=self.connected, remembered=self._remembered, admit=self.admit,
        )  # fmt: skip

    async def _report(self, address: Address, state: str, retry_in: float | None, peer: PeerId | None) -> None:
        retry_at = None if retry_in is None else now_ms() + int(retry_in * 1000)
        await self._database(self._peers.dial_state, str(address), state, retry_at, peer)
        if peer is not None:
            await self._database(self._peers.pin, address.target, peer)
            await self._database(self._peers.address_reached, peer, address.target)

    async def _remembered(self, address: Address) -> PeerId | None:
        return await self._database(self._peers.pinned, address.target)

    async def _neighbours_forever(self) -> None:
        """Keep up ``network.neighbours`` connections from what is known of the swarm."""
        while True:
            wanted = self._network.neighbours - len(self._gossip.sessions) - len(self._dialling)
            if wanted > 0 and not self._gossip.stopping.is_set():
                for address in await self._candidates(wanted):
                    task = asyncio.create_task(self._dial(address))
                    self._dialling.add(task)
                    task.add_done_callback(self._dialling.discard)
            await asyncio.sleep(NEIGHBOUR_SECONDS)

    async def _refresh_forever(self) -> None:
        """Exchange one neighbour for another now and then, so that nobody can settle around this node for good."""
        while True:
            await asyncio.sleep(self._network.refresh_seconds * self._rng.uniform(0.7, 1.3))
            if len(self._gossip.sessions) < self._network.neighbours or not await self._candidates(1):
                continue
            now = time.monotonic()
            dialled = []
            for peer in self._chosen & self._gossip.sessions.keys():
                session = self._gossip.sessions[peer]
                score = await self._database(self._peers.score, peer)
                value = Score(score.value, score.at_ms).now(now_ms())
                dialled.append(Dialled(peer, session.neighbour.address_range, now - session.began_at, value))
            goes = whom_to_leave(dialled, wanted=self._network.neighbours)
            if goes is not None and (leaving := self._gossip.sessions.get(goes)) is not None:
                log.info("leaving %s for another neighbour", short_id(goes), extra=about(peer=goes))
                leaving.close("making room for another neighbour")

    async def _candidates(self, wanted: int) -> list[Address]:
        known = await self._database(self._peers.known_addresses)
        configured = {address.target for address in self._configured}
        return whom_to_dial(
            [
                Dialable(entry.peer, entry.target, entry.reached_ms, entry.failed_ms, entry.failures)
                for entry in known
                if entry.target not in configured
            ],
            own_id=self._own.peer_id,
            wanted=wanted,
            connected_ranges=[session.neighbour.address_range for session in self._gossip.sessions.values()],
            now_ms=now_ms(),
            lately_retry_ms=int(self._network.dial_backoff_max * 1000),
            rng=self._rng,
        )

    async def _dial(self, address: Address) -> None:
        """Dial a learned address once; serves the session until it ends."""
        assert address.peer_id is not None
        peer = address.peer_id
        self._chosen.add(peer)

        async def report(_: Address, state: str, retry_in: float | None, answered: PeerId | None) -> None:
            del state, retry_in, answered
            await self._database(self._peers.address_reached, peer, address.target)

        async def remembered(_: Address) -> PeerId:
            return peer

        try:
            await dial_once(address, self._own, self._gossip, report, self.connected, remembered, self.admit)
        except (TimeoutError, WireError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            log.debug("%s at %s: %s", short_id(peer), address.target, error)
            await self._database(self._peers.address_failed, peer, address.target)
        finally:
            self._chosen.discard(peer)

    # --- traffic ----------------------------------------------------------------------------

    async def _traffic_forever(self) -> None:
        while True:
            await asyncio.sleep(TRAFFIC_SECONDS)
            await self._count_traffic(list(self._gossip.sessions.values()))

    async def _count_traffic(self, sessions: list[Session]) -> None:
        traffic = [
            Traffic(
                peer=s.neighbour.peer_id,
                bytes_in=s.bytes_in,
                bytes_out=s.bytes_out,
                throttled_seconds=s.throttled_seconds,
                round_trip_ms=s.round_trip_ms,
                silent_seconds=time.monotonic() - s.heard_at,
            )
            for s in sessions
        ]
        for session in sessions:
            session.bytes_in = session.bytes_out = 0
            session.throttled_seconds = 0.0
        for entry in traffic:
            if entry.throttled_seconds > TRAFFIC_SECONDS / 2:
                log.warning(
                    "%s sends more than a peer may: it is held back", short_id(entry.peer), extra=about(peer=entry.peer)
                )
        if traffic:
            await self._database(self._peers.traffic, traffic)
