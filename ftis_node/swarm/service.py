"""The gRPC server: strangers prove who they are, then a session begins."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from ftis_node.clock import now_ms
from ftis_node.errors import ConfigError, StoreError, WireError
from ftis_node.log import about
from ftis_node.swarm.addresses import Address, address_range, observed_host
from ftis_node.swarm.frames import EOF
from ftis_node.swarm.gossip import Gossip
from ftis_node.swarm.handshake import NONCE_BYTES, NONCE_KEY, Self, check_client_hello, server_hello
from ftis_node.swarm.reach import ProbeRefused, ReachProbe
from ftis_node.swarm.records import NodeRecord
from ftis_node.swarm.session import Neighbour, Session
from ftis_node.types import short_id
from ftis_node.wire.limits import MAX_MESSAGE_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
PENDING_HANDSHAKES = 64
STREAMS_PER_CONNECTION = 4

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The payload is compressed already, and inflating on receipt would be a way to bomb a node.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
]

SERVER_OPTIONS = [
    *CHANNEL_OPTIONS,
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
    # Connections that never finish TLS, or never ask for anything, go away by themselves.
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
    ("grpc.max_connection_idle_ms", 60_000),
]

StatusJson = Callable[[], Awaitable[bytes]]
Connected = Callable[[Session, bool], Awaitable[None]]
Admit = Callable[[NodeRecord], Awaitable[str | None]]
"""Why a peer is refused; None if it is welcome."""


class SwarmService(rpc.SwarmServicer):
    """The server side; one instance per node."""

    def __init__(self, own: Self, gossip: Gossip, status: StatusJson, connected: Connected, admit: Admit) -> None:
        self._own = own
        self._gossip = gossip
        self._status = status
        self._connected = connected
        self._admit = admit
        self._pending: OrderedDict[int, asyncio.Timeout] = OrderedDict()
        self._reach = ReachProbe()

    async def Exchange(self, request_iterator: object, context: grpc.aio.ServicerContext[pb.Frame, pb.Frame]) -> None:
        del request_iterator  # reading through the context allows deadlines
        try:
            async with self._handshake_slot():
                record = await self._handshake(context)
        except TimeoutError:
            log.debug("%s said nothing in time", context.peer())
            return
        if record is not None:
            neighbour = neighbour_of(record, direction="in", grpc_peer=context.peer())
            await serve(Session(neighbour, context, self._gossip.config), self._gossip, self._connected)

    @contextlib.asynccontextmanager
    async def _handshake_slot(self) -> AsyncIterator[None]:
        """A bounded number of strangers may be at the door; when it is full the oldest has to go."""
        if len(self._pending) >= PENDING_HANDSHAKES:
            self._pending.popitem(last=False)[1].reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(HANDSHAKE_SECONDS) as deadline:
            key = id(deadline)
            self._pending[key] = deadline
            try:
                yield
            finally:
                self._pending.pop(key, None)

    async def _handshake(self, context: grpc.aio.ServicerContext[pb.Frame, pb.Frame]) -> NodeRecord | None:
        """The record of a peer that has proved who it is and is welcome; others are told why not."""
        nonce = os.urandom(NONCE_BYTES)
        await context.send_initial_metadata(((NONCE_KEY, nonce),))
        first = await context.read()
        if first is EOF:
            return None
        try:
            record = check_client_hello(first, self._own, nonce=nonce, now_ms=now_ms())
            refusal = await self._admit(record)
        except WireError as error:
            refusal = str(error)
        if refusal is not None:
            await context.write(pb.Frame(goodbye=pb.Goodbye(reason=refusal)))
            return None
        await context.write(server_hello(self._own, now_ms=now_ms()))
        return record

    async def GetManifest(
        self, request: pb.ManifestRequest, context: grpc.aio.ServicerContext[pb.ManifestRequest, pb.ManifestReply]
    ) -> pb.ManifestReply:
        del request, context
        return pb.ManifestReply(manifest=self._own.run.data, record=self._own.record(now_ms()))

    async def GetStatus(
        self, request: pb.StatusRequest, context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply]
    ) -> pb.StatusReply:
        del request
        try:
            status = await self._status()
        except StoreError as error:
            log.error("a node that asks for the status gets none: %s", error)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "can't read its store")
        return pb.StatusReply(status_json=status, record=self._own.record(now_ms()))

    async def ProbeReach(
        self, request: pb.ReachRequest, context: grpc.aio.ServicerContext[pb.ReachRequest, pb.ReachReply]
    ) -> pb.ReachReply:
        try:
            probe = await self._reach.answer(context.peer(), request.port, request.certificate_sha256)
        except ProbeRefused as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return pb.ReachReply(reached=probe.reached, host=probe.host, reason=probe.reason)


def neighbour_of(record: NodeRecord, *, direction: str, grpc_peer: str) -> Neighbour:
    """A peer whose hello was checked. ``grpc_peer`` is where the connection comes from."""
    dialable = [Address(address.host, address.port, record.peer_id) for address in record.addresses]
    host = observed_host(grpc_peer)
    if direction == "in" and record.listen_port and host:
        dialable.append(Address(host, record.listen_port, record.peer_id))
    return Neighbour(
        peer_id=record.peer_id,
        direction=direction,
        address=record.addresses[0].target if record.addresses else "",
        address_range=address_range(grpc_peer),
        model=record.model,
        version=record.version,
        dialable=tuple(dict.fromkeys(dialable)),
        dht_addresses=record.dht_addresses,
        tokenizer_fingerprint=record.tokenizer_fingerprint,
        instance=record.instance,
    )


async def serve(session: Session, gossip: Gossip, connected: Connected) -> str:
    """Run one session from admission to its end."""
    if (refusal := gossip.admit(session)) is not None:
        await session.stream.write(pb.Frame(goodbye=pb.Goodbye(reason=refusal)))
        return refusal
    peer = short_id(session.neighbour.peer_id)
    fields = about(peer=session.neighbour.peer_id)
    model, direction = session.neighbour.model or "relay", session.neighbour.direction
    log.info("connected to %s (%s, %s)", peer, model, direction, extra=fields)
    await connected(session, True)
    try:
        reason = await gossip.run(session)
        log.info("disconnected from %s: %s", peer, reason, extra=fields)
        return reason
    finally:
        if session.neighbour.peer_id not in gossip.sessions:
            await connected(session, False)


async def bind(listen: Address, credentials: grpc.ServerCredentials) -> tuple[grpc.aio.Server, int]:
    """A server that has its port but doesn't answer yet. Raises ConfigError when the port is taken."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    try:
        port = server.add_secure_port(listen.target, credentials)
    except RuntimeError as error:
        raise ConfigError(f"network.listen: {listen.target}: can't listen there: is the port in use?") from error
    return server, port


async def start(server: grpc.aio.Server, service: SwarmService) -> None:
    rpc.add_SwarmServicer_to_server(service, server)
    await server.start()
