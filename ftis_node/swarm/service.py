"""The gRPC server and the dialers: how sessions come about."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from ftis_node.errors import ConfigError, WireError
from ftis_node.manifest import MAX_MANIFEST_BYTES, Run, parse_run
from ftis_node.swarm.addresses import Address, address_range
from ftis_node.swarm.frames import EOF
from ftis_node.swarm.gossip import Gossip, Neighbour, Session, Stream
from ftis_node.types import PeerId, RunId, short_id
from ftis_node.wire.limits import MAX_MESSAGE_BYTES, MAX_STREAMS
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
RPC_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.5
RECHECK_SECONDS = 30.0

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The payload is compressed already, and inflating on receipt would be a way to bomb a node.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
]

ReportDial = Callable[[Address, str, float | None, PeerId | None], Awaitable[None]]
StatusJson = Callable[[], Awaitable[bytes]]
Connected = Callable[[Session, bool], Awaitable[None]]


@dataclass(frozen=True)
class Self:
    """What this node says of itself in its hello."""

    peer_id: PeerId
    run: Run
    version: str
    model: str
    address: str

    def hello(self) -> pb.Frame:
        return pb.Frame(
            hello=pb.Hello(
                peer_id=self.peer_id,
                run_id=self.run.run_id,
                version=self.version,
                model=self.model,
                address=self.address,
            )
        )


class Refused(WireError):
    """The other side can't be a neighbour, and trying again soon won't change that."""


def _neighbour(frame: pb.Frame, own: Self, *, direction: str, grpc_peer: str) -> Neighbour:
    """Check a peer's first frame. Raises WireError or Refused."""
    if frame.WhichOneof("kind") == "goodbye":
        raise Refused(f"the peer refused: {frame.goodbye.reason[:120]}")
    if frame.WhichOneof("kind") != "hello":
        raise WireError("the first frame isn't a hello")
    hello = frame.hello
    if len(hello.peer_id) != 32:
        raise WireError(f"the hello has a peer id of {len(hello.peer_id)} bytes")
    if hello.run_id != own.run.run_id:
        raise Refused(f"the peer is in run {short_id(hello.run_id)}, this node in {short_id(own.run.run_id)}")
    if hello.peer_id == own.peer_id:
        raise Refused("this is the node itself, or a second node with the same identity")
    return Neighbour(
        peer_id=PeerId(hello.peer_id),
        direction=direction,
        address=hello.address[:200],
        address_range=address_range(grpc_peer),
        model=hello.model[:100],
        version=hello.version[:40],
    )


class SwarmService(rpc.SwarmServicer):
    """The server side; one instance per node."""

    def __init__(self, own: Self, gossip: Gossip, status: StatusJson, connected: Connected) -> None:
        self._own = own
        self._gossip = gossip
        self._status = status
        self._connected = connected
        self._streams = 0

    async def Exchange(self, request_iterator: object, context: grpc.aio.ServicerContext[pb.Frame, pb.Frame]) -> None:
        del request_iterator  # reading through the context allows deadlines
        if self._streams >= MAX_STREAMS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this node has no room for another neighbour")
        self._streams += 1
        try:
            first = await asyncio.wait_for(context.read(), HANDSHAKE_SECONDS)
            if first is EOF:
                return
            try:
                neighbour = _neighbour(first, self._own, direction="in", grpc_peer=context.peer())
            except WireError as error:
                await context.write(pb.Frame(goodbye=pb.Goodbye(reason=str(error))))
                return
            await context.write(self._own.hello())
            await serve(Session(neighbour, context), self._gossip, self._connected)
        except TimeoutError:
            log.debug("%s said nothing for %.0f s", context.peer(), HANDSHAKE_SECONDS)
        finally:
            self._streams -= 1

    async def GetManifest(
        self, request: pb.ManifestRequest, context: grpc.aio.ServicerContext[pb.ManifestRequest, pb.ManifestReply]
    ) -> pb.ManifestReply:
        del request, context
        return pb.ManifestReply(manifest=self._own.run.data)

    async def GetStatus(
        self, request: pb.StatusRequest, context: grpc.aio.ServicerContext[pb.StatusRequest, pb.StatusReply]
    ) -> pb.StatusReply:
        del request, context
        return pb.StatusReply(status_json=await self._status())


async def serve(session: Session, gossip: Gossip, connected: Connected) -> str:
    """Run one session from admission to its end."""
    if not gossip.admit(session):
        await session.stream.write(pb.Frame(goodbye=pb.Goodbye(reason="already connected the other way")))
        return "already connected the other way"
    peer = short_id(session.neighbour.peer_id)
    log.info("connected to %s (%s, %s)", peer, session.neighbour.model or "relay", session.neighbour.direction)
    await connected(session, True)
    try:
        reason = await gossip.run(session)
        log.info("disconnected from %s: %s", peer, reason)
        return reason
    finally:
        if session.neighbour.peer_id not in gossip.sessions:
            await connected(session, False)


async def start_server(service: SwarmService, listen: Address) -> tuple[grpc.aio.Server, int]:
    """Bind and start; returns the server and its port. Raises ConfigError when the port is taken."""
    server = grpc.aio.server(options=[*_OPTIONS, ("grpc.max_concurrent_streams", 2 * MAX_STREAMS)])
    rpc.add_SwarmServicer_to_server(service, server)
    try:
        port = server.add_insecure_port(listen.target)
    except RuntimeError as error:
        raise ConfigError(f"network.listen: {listen.target}: can't listen there: is the port in use?") from error
    await server.start()
    return server, port


def open_channel(address: Address) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address.target, options=_OPTIONS)


async def keep_dialling(
    address: Address, own: Self, gossip: Gossip, *, backoff_max: float, report: ReportDial, connected: Connected
) -> None:
    """Keep one configured peer connected for as long as the node runs; backs off while it doesn't answer."""
    backoff = FIRST_BACKOFF_SECONDS
    while True:
        started = asyncio.get_running_loop().time()
        try:
            reason, peer = await _dial(address, own, gossip, report, connected)
            if "already connected" in reason:
                await report(address, "connected the other way", RECHECK_SECONDS, peer)
                await asyncio.sleep(RECHECK_SECONDS)
                continue
        except Refused as error:
            reason = str(error)
            backoff = backoff_max
        except (TimeoutError, WireError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            reason = str(error) if isinstance(error, WireError) else "does not answer"
        if asyncio.get_running_loop().time() - started > RECHECK_SECONDS:
            backoff = FIRST_BACKOFF_SECONDS  # it was a good connection
        wait = backoff * random.uniform(0.7, 1.3)
        log.warning("peer %s: %s; trying again in %.1f s", address, reason, wait)
        await report(address, reason, wait, None)
        await asyncio.sleep(wait)
        backoff = min(2 * backoff, backoff_max)


async def _dial(
    address: Address, own: Self, gossip: Gossip, report: ReportDial, connected: Connected
) -> tuple[str, PeerId]:
    async with open_channel(address) as channel:
        await asyncio.wait_for(_ready(channel), HANDSHAKE_SECONDS)
        call: Stream = rpc.SwarmStub(channel).Exchange()
        await asyncio.wait_for(call.write(own.hello()), HANDSHAKE_SECONDS)
        first = await asyncio.wait_for(call.read(), HANDSHAKE_SECONDS)
        if first is EOF:
            raise WireError("the peer closed the connection before its hello")
        neighbour = _neighbour(first, own, direction="out", grpc_peer=f"ipv4:{address.target}")
        if address.peer_id is not None and neighbour.peer_id != address.peer_id:
            raise Refused(f"peer {short_id(neighbour.peer_id)} answers instead of {short_id(address.peer_id)}")
        await report(address, "connected", None, neighbour.peer_id)
        return await serve(Session(neighbour, call), gossip, connected), neighbour.peer_id


async def _ready(channel: grpc.aio.Channel) -> None:
    """Wait for the connection; unlike ``channel_ready`` a refusal ends the wait at once."""
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise WireError("can't be reached")
        await channel.wait_for_state_change(state)


async def fetch_run(address: Address, expected: RunId | None) -> Run:
    """Get the run manifest from a peer and check it against the expected id.

    Raises ConfigError when it isn't usable; TimeoutError or AioRpcError when nobody answers.
    """
    async with open_channel(address) as channel:
        reply = await asyncio.wait_for(rpc.SwarmStub(channel).GetManifest(pb.ManifestRequest()), RPC_SECONDS)
    run = parse_run(reply.manifest[: MAX_MANIFEST_BYTES + 1], source=f"run manifest from {address}")
    if expected is not None and run.run_id != expected:
        raise ConfigError(f"--run-id: {address} is in run {run.run_id.hex()}, expected was {expected.hex()}")
    return run


async def fetch_status(address: Address) -> bytes:
    """A peer's own status as JSON bytes. Raises TimeoutError or AioRpcError."""
    async with open_channel(address) as channel:
        reply = await asyncio.wait_for(rpc.SwarmStub(channel).GetStatus(pb.StatusRequest()), RPC_SECONDS)
    return bytes(reply.status_json)
