"""The part of a node that lives in the swarm, for one run: server, gossip, membership, DHT. No learner, no signals.

It publishes whatever a learner commits to the store's outbox, and keeps what peers send.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ftis_node import __version__
from ftis_node.clock import now_ms
from ftis_node.config import NodeConfig
from ftis_node.database_thread import DatabaseThread
from ftis_node.dht import DhtMember
from ftis_node.errors import HomeError
from ftis_node.exchange import BatchExchange
from ftis_node.identity import Identity
from ftis_node.manifest import Run
from ftis_node.membership import Membership
from ftis_node.status.snapshot import read_status
from ftis_node.store.schema import STORE_FILE
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.swarm.gossip import Gossip
from ftis_node.swarm.handshake import Reach, Self
from ftis_node.swarm.service import SwarmService, bind, start
from ftis_node.swarm.tls import load_or_create_certificate
from ftis_node.types import short_id
from ftis_node.wire.v1 import swarm_pb2 as pb

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PRUNE_SECONDS = 30.0
GOODBYE_SECONDS = 1.0
STATUS_SECONDS = 1.0
TWIN_SECONDS = 60.0
CLOCK_SECONDS = 2.0
CLOCK_STEP_SECONDS = 5.0
HOME_SECONDS = 5.0


@dataclass(frozen=True)
class Party:
    """Who takes part in which run. ``model`` is empty for a relay; ``membership`` is the proof of admission."""

    home: Path
    identity: Identity
    run: Run
    model: str
    membership: bytes


class NetworkHalf:
    """Started once; ``serve`` runs until it is cancelled."""

    def __init__(self, party: Party, config: NodeConfig, peers: list[Address], database: DatabaseThread) -> None:
        self._party = party
        self._config = config
        self._peers = peers
        self._database = database
        self._store = database.store
        self._status: tuple[float, bytes] = (-STATUS_SECONDS, b"")
        self._reading_status = asyncio.Lock()
        self._twin_said_at = -TWIN_SECONDS
        self._reports: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        """Take the port and begin to answer; returns where. Raises ConfigError when the port is taken."""
        network, party = self._config.network, self._party
        epoch = await self._database(self._store.next_epoch)
        instance = os.urandom(16)
        self._exchange = BatchExchange(
            self._database, party.run, party.identity, self._config.ceilings, party.membership, epoch, instance
        )
        self.gossip = Gossip(self._exchange, party.identity.peer_id, network)
        listen = parse_address(network.listen, source="network.listen", lowest_port=0)
        certificate = load_or_create_certificate(party.home)
        self._server, port = await bind(listen, certificate.server_credentials())
        advertise = network.advertise
        self._own = Self(
            identity=party.identity,
            certificate=certificate,
            run=party.run,
            version=__version__,
            model=party.model,
            reach=Reach(() if advertise is None else (parse_address(advertise, source="network.advertise"),)),
            listen_port=port,
            instance=instance,
            membership=party.membership,
        )
        await self._learn_profile()
        self._dht = DhtMember(self._own, self._database, self._report_dht) if network.dht == "on" else None
        if self._dht is None:
            await self._report_dht("off")
        else:
            await self.put_of_this_process("network", "starting the DHT")
            await self._dht.start(listen, network.dht_port)
            await self.put_of_this_process("network", "")
        self._membership = Membership(self._database, self._own, self.gossip, self._peers, self._dht, self._twin)
        self._exchange.on_ban = self._membership.banned
        self._exchange.on_twin = self._twin
        service = SwarmService(
            self._own, self.gossip, self._status_json, self._membership.connected, self._membership.admit
        )
        await start(self._server, service)
        bound = Address(listen.host, port)
        await self.put_of_this_process("ping_seconds", str(network.ping_seconds))
        await self.put_of_this_process("listening", bound.target)
        log.info(
            "node %s of run %r (%s) listens on %s",
            short_id(party.identity.peer_id), party.run.manifest.name, short_id(party.run.run_id), bound.target,
        )  # fmt: skip
        return bound

    async def serve(self) -> None:
        """Publish, prune and keep connected, until cancelled. An error in one of them ends all: HomeError when the home
        is gone, any other is a bug.
        """
        tasks = [
            asyncio.create_task(self._publish_forever()),
            asyncio.create_task(self._prune_forever()),
            asyncio.create_task(self._membership.run()),
            asyncio.create_task(self._watch_clock()),
            asyncio.create_task(self._watch_home()),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*tasks, *self._reports):
                task.cancel()
            await asyncio.gather(*tasks, *self._reports, return_exceptions=True)

    async def say_goodbye(self) -> None:
        """So that peers know of a stop in order, and don't wait for a silence."""
        sessions = list(self.gossip.sessions.values())
        for session in sessions:
            session.send(pb.Frame(goodbye=pb.Goodbye(reason="stopping")))
        if sessions:
            await asyncio.sleep(GOODBYE_SECONDS / 4)
        for session in sessions:
            session.close("this node stops")

    async def stop(self) -> None:
        """After ``serve`` has been cancelled."""
        await self._server.stop(grace=GOODBYE_SECONDS)
        await self._database(self._store.peers.all_disconnected)
        if self._dht is not None:
            await self._dht.stop()

    # --- background work --------------------------------------------------------------------

    async def _publish_forever(self) -> None:
        """Sign and announce as soon as the learner commits; ``data_version`` makes polling cheap."""
        seen = -1
        while True:
            version = await self._database(self._store.data_version)
            if version != seen:
                seen = version
                await self._learn_profile()
                while published := await self._exchange.publish_outbox():
                    for name, size in published:
                        self.gossip.announce(name, size)
                while await self._exchange.fold_verdicts():
                    pass
            await asyncio.sleep(POLL_SECONDS)

    async def _learn_profile(self) -> None:
        """The learner has loaded its model, now or before: hellos and records name its tokenizer."""
        profile = await self._database(self._store.local_profile)
        self._exchange.profile = profile
        if profile is not None and self._party.model:
            self._own.reach.tokenizer_fingerprint = profile.tokenizer_fingerprint

    async def _prune_forever(self) -> None:
        while True:
            await self._exchange.prune()
            await asyncio.sleep(PRUNE_SECONDS)

    async def _watch_clock(self) -> None:
        """With a clock that was set back peers refuse what is made here: say why. A later one may mean a sleep."""
        ahead = time.time() - time.monotonic()
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            before, ahead = ahead, time.time() - time.monotonic()
            if before - ahead > CLOCK_STEP_SECONDS:
                log.error("this machine's clock was set back by %.0f s", before - ahead)
                await self.put_of_this_process("clock", f"{before - ahead:.0f}")

    async def _watch_home(self) -> None:
        """The open store of a home that was deleted can be written for ever, and nobody will find it again."""
        store = self._party.home / STORE_FILE
        opened = store.stat()
        while True:
            await asyncio.sleep(HOME_SECONDS)
            try:
                there = store.stat()
            except FileNotFoundError:
                there = None
            if there is None or (there.st_dev, there.st_ino) != (opened.st_dev, opened.st_ino):
                raise HomeError(f"{store}: was deleted or replaced while the node ran; nothing can be kept any more")

    # --- what is reported -------------------------------------------------------------------

    def _twin(self) -> None:
        """There is proof of a second daemon with this identity: said at once, then once a minute."""
        if time.monotonic() - self._twin_said_at < TWIN_SECONDS:
            return
        self._twin_said_at = time.monotonic()
        log.error("a second daemon runs with this node's identity: stop one of them, or give it another --home")
        task = asyncio.get_running_loop().create_task(self.put_of_this_process("twin", str(now_ms())))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report_dht(self, state: str) -> None:
        await self.put_of_this_process("dht", state)

    async def put_of_this_process(self, key: str, text: str, seconds: float | None = None) -> None:
        """A state that means nothing once this process is gone; it lasts ``seconds`` at most if that is known."""
        await self._database(self._store.put_state, key, text, seconds)

    async def _status_json(self) -> bytes:
        """At most one reading a second, however many ask, also all at once."""
        async with self._reading_status:
            at, status = self._status
            if time.monotonic() - at >= STATUS_SECONDS:
                read = await asyncio.to_thread(read_status, self._party.home)
                status = read.model_dump_json().encode()
                self._status = (time.monotonic(), status)
            return status
