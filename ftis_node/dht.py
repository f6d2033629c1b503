"""The node as a member of the DHT: started with it, introduced by neighbours, publishing and searching.

Nothing depends on it: a node that can't or won't run it is a full member by peer exchange.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ftis_node.clock import now_ms
from ftis_node.database_thread import DatabaseThread
from ftis_node.errors import DiscoveryError
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.handshake import Self

if TYPE_CHECKING:
    from ftis_node.swarm.discovery import Discovery

log = logging.getLogger(__name__)

SEARCH_SECONDS = 20.0
PUBLISH_MS = 600_000
INTRODUCTIONS = 64
TRIES = 30  # one per search: a clock that is set right within ten minutes is noticed
CALL_SECONDS = 30.0
STOP_SECONDS = 5.0

ReportDht = Callable[[str], Awaitable[None]]


class DhtMember:
    """One per node that runs the DHT."""

    def __init__(self, own: Self, database: DatabaseThread, report: ReportDht) -> None:
        self._own = own
        self._database = database
        self._peers = database.store.peers
        self._report = report
        self._discovery: Discovery | None = None
        self._introductions: asyncio.Queue[tuple[str, ...]] = asyncio.Queue(INTRODUCTIONS)
        self._failures: dict[tuple[str, ...], int] = {}
        self._last_failure = ""
        self._joined = False
        self._published_ms = 0
        self._known_at_publication = -1
        self._state = ""

    async def start(self, listen: Address, port: int) -> None:
        """Start the DHT node before anybody is dialled, so that hellos can name it. Failing is not fatal."""
        await self._say("starting")
        kind = "ip6" if ":" in listen.host else "ip4"
        try:
            # Importing hivemind takes seconds: the event loop goes on meanwhile.
            module = await asyncio.to_thread(importlib.import_module, "ftis_node.swarm.discovery")
            discovery: Discovery = await asyncio.wait_for(
                module.Discovery.start(self._own.run, listen=f"/{kind}/{listen.host}/tcp/{port}"), CALL_SECONDS
            )
            addresses = await asyncio.wait_for(discovery.addresses(), CALL_SECONDS)
        except ImportError as error:
            await self._say(f"off: hivemind can't be imported ({error}); peers are found by peer exchange alone")
            return
        except (DiscoveryError, TimeoutError) as error:
            await self._say(f"off: {error or 'the DHT node does not start'}; peers are found by peer exchange alone")
            return
        self._discovery = discovery
        self._own.reach.dht_addresses = tuple(addresses[:2])
        if not self._own.reach.addresses:
            hosts = dict.fromkeys(address.split("/")[2] for address in addresses)
            self._own.reach.addresses = tuple(Address(host, self._own.listen_port) for host in hosts)[:3]
        await self._say("on, nobody known yet")

    def meet(self, addresses: tuple[str, ...]) -> None:
        """A neighbour runs the DHT too."""
        if self._discovery is not None and addresses and not self._introductions.full():
            self._introductions.put_nowait(addresses)

    async def run(self) -> None:
        """Join, publish and search until cancelled."""
        if self._discovery is None:
            return
        everywhere = True
        while True:
            met = await self._introduce(self._discovery)
            try:
                await asyncio.wait_for(self._publish(self._discovery), CALL_SECONDS)
                found = await asyncio.wait_for(self._discovery.find(everywhere=everywhere), CALL_SECONDS)
            except TimeoutError:
                log.info("the DHT did not answer within %.0f s", CALL_SECONDS)
            else:
                everywhere = met
                addresses = [
                    (r.peer_id, a.target) for r in found for a in r.addresses if r.peer_id != self._own.peer_id
                ]
                await self._database(self._peers.learn_addresses, addresses)
                await self._say(self._condition(self._discovery.nodes_known))
            if self._introductions.empty():
                await asyncio.sleep(SEARCH_SECONDS / 20 if met else SEARCH_SECONDS)

    def _condition(self, known: int) -> str:
        """Nodes known say little: others with the right time enter the table of one that they refuse."""
        if self._last_failure and not self._joined:
            return f"on, but {self._last_failure}"
        return f"on, {known} nodes known" if known else "on, nobody known yet"

    async def _introduce(self, discovery: Discovery) -> bool:
        """Join by every neighbour that has come up, and by those that refused before; whether one of them took it."""
        waiting = dict.fromkeys(self._failures)
        while not self._introductions.empty():
            waiting[self._introductions.get_nowait()] = None
        return any(await asyncio.gather(*(self._join(discovery, addresses) for addresses in waiting)))

    async def _join(self, discovery: Discovery, addresses: tuple[str, ...]) -> bool:
        try:
            await asyncio.wait_for(discovery.join(addresses), CALL_SECONDS)
        except (DiscoveryError, TimeoutError) as error:
            self._last_failure = str(error) or "a peer does not answer"
            tries = self._failures.pop(addresses, 0) + 1
            if tries < TRIES and len(self._failures) < INTRODUCTIONS:
                self._failures[addresses] = tries
            return False
        self._failures.pop(addresses, None)
        self._joined = True
        return True

    async def _publish(self, discovery: Discovery) -> None:
        if now_ms() - self._published_ms >= PUBLISH_MS or discovery.nodes_known > self._known_at_publication:
            self._known_at_publication = discovery.nodes_known
            self._published_ms = now_ms()
            await discovery.publish(self._own.record(now_ms()))

    async def _say(self, state: str) -> None:
        if state != self._state:
            self._state = state
            log.info("DHT: %s", state)
            await self._report(state)

    async def stop(self) -> None:
        if self._discovery is not None:
            try:
                await asyncio.wait_for(self._discovery.stop(), STOP_SECONDS)
            except (TimeoutError, OSError) as error:
                # Ctrl-C in a terminal goes to its process too, which then has ended before it is asked to.
                log.debug("the DHT's process does not answer any more: %s", error)
