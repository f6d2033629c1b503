"""The client side: pinned channels, keeping configured peers connected, and single questions to a peer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from ftis_node.clock import now_ms
from ftis_node.errors import ConfigError, DialError, WireError
from ftis_node.manifest import MAX_MANIFEST_BYTES, Run, parse_run
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.frames import EOF
from ftis_node.swarm.gossip import ALREADY_CONNECTED, Gossip
from ftis_node.swarm.handshake import (
    NONCE_BYTES,
    NONCE_KEY,
    Refused,
    Self,
    check_server_hello,
    check_server_record,
    client_hello,
)
from ftis_node.swarm.reach import Probe
from ftis_node.swarm.records import NodeRecord, check_lifetime, read_record
from ftis_node.swarm.service import CHANNEL_OPTIONS, Admit, Connected, neighbour_of, serve
from ftis_node.swarm.session import Session, Stream
from ftis_node.swarm.tls import (
    Certificate,
    certificate_sha256,
    fetch_certificate,
    name_in,
    pinned_credentials,
    public_key_sha256,
    silent,
)
from ftis_node.types import PeerId, RunId
from ftis_node.wire.limits import MAX_MESSAGE_BYTES, MAX_STATUS_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc

log = logging.getLogger(__name__)

RPC_SECONDS = 10.0
FIRST_BACKOFF_SECONDS = 0.5
RECHECK_SECONDS = 30.0

Unanswered = TimeoutError | grpc.aio.AioRpcError | asyncio.InvalidStateError | WireError
"""What a dial or a question to a peer raises when nothing comes of it."""

ReportDial = Callable[[Address, str, float | None, PeerId | None], Awaitable[None]]
Remembered = Callable[[Address], Awaitable[PeerId | None]]
"""Which peer answered at an address before."""


def open_channel(
    address: Address, certificate_pem: bytes, longest_message: int = MAX_MESSAGE_BYTES
) -> grpc.aio.Channel:
    """A channel that speaks to the owner of this certificate and to nobody else."""
    options = {
        **dict(CHANNEL_OPTIONS),
        "grpc.ssl_target_name_override": name_in(certificate_pem),
        "grpc.max_receive_message_length": longest_message,
    }
    return grpc.aio.secure_channel(address.target, pinned_credentials(certificate_pem), options=list(options.items()))


def why_unanswered(error: Unanswered, seconds: float) -> WireError:
    """The reason in words, as a DialError where no node answers; ``seconds`` is how long was waited at most."""
    if isinstance(error, WireError):
        return error
    if isinstance(error, TimeoutError):
        return silent(seconds)
    if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return DialError("not a node", "answers, but not as an ftis-node of this version does")
    return DialError("silent", "does not answer: the connection breaks off")


async def keep_dialling(
    address: Address, own: Self, gossip: Gossip, *, backoff_max: float, report: ReportDial, connected: Connected,
    remembered: Remembered, admit: Admit,
) -> None:  # fmt: skip
    """Keep one configured peer connected for as long as the node runs; backs off while it doesn't answer."""
    backoff, said = FIRST_BACKOFF_SECONDS, ""
    while not gossip.stopping.is_set():
        started = asyncio.get_running_loop().time()
        try:
            reason, peer = await dial_once(address, own, gossip, report, connected, remembered, admit)
            said = ""
            if ALREADY_CONNECTED in reason:
                await report(address, "connected the other way", RECHECK_SECONDS, peer)
                await asyncio.sleep(RECHECK_SECONDS)
                continue
        except Refused as error:
            reason = str(error)
            backoff = backoff_max
        except (TimeoutError, WireError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            reason = str(why_unanswered(error, gossip.config.dial_seconds))
        if gossip.stopping.is_set():
            return
        if asyncio.get_running_loop().time() - started > RECHECK_SECONDS:
            backoff = FIRST_BACKOFF_SECONDS  # it was a good connection
        wait = backoff * random.uniform(0.7, 1.3)
        # Said once: a peer that is away for days is a state, which ``health`` shows, and no news.
        log.log(
            logging.DEBUG if reason == said else logging.WARNING, "peer %s: %s; trying again in %.1f s%s",
            address, reason, wait, "" if reason == said else ", and so on",
        )  # fmt: skip
        said = reason
        await report(address, reason, wait, None)
        await asyncio.sleep(wait)
        backoff = min(2 * backoff, backoff_max)


async def dial_once(
    address: Address, own: Self, gossip: Gossip, report: ReportDial, connected: Connected, remembered: Remembered,
    admit: Admit,
) -> tuple[str, PeerId]:  # fmt: skip
    """Connect and serve the session until it ends; returns why it ended, and who it was.

    Raises WireError (Refused when trying again won't help), TimeoutError or AioRpcError when there is no session.
    """
    limit = gossip.config.dial_seconds
    certificate = await fetch_certificate(address, limit)
    expected = address.peer_id or await remembered(address)
    async with open_channel(address, certificate) as channel:
        call = rpc.SwarmStub(channel).Exchange()
        nonce = await asyncio.wait_for(_nonce(call), limit)
        hello = client_hello(own, server_key_sha256=public_key_sha256(certificate), nonce=nonce, now_ms=now_ms())
        stream: Stream = call
        await asyncio.wait_for(stream.write(hello), limit)
        first = await asyncio.wait_for(stream.read(), limit)
        if first is EOF:
            raise WireError("the peer closed the connection before its hello")
        record = check_server_hello(
            first, own, certificate_sha256=certificate_sha256(certificate), expected=expected, now_ms=now_ms()
        )
        if (refusal := await admit(record)) is not None:
            raise Refused(f"is not admitted here: {refusal}")
        if expected is None:
            log.info("%s is %s: trusted on first use, and remembered", address, record.peer_id.hex())
        await report(address, "connected", None, record.peer_id)
        neighbour = neighbour_of(record, direction="out", grpc_peer=f"ipv4:{address.target}")
        return await serve(Session(neighbour, stream, gossip.config), gossip, connected), record.peer_id


async def _nonce(call: grpc.aio.StreamStreamCall[pb.Frame, pb.Frame]) -> bytes:
    for key, value in await call.initial_metadata():
        if key == NONCE_KEY and isinstance(value, bytes) and len(value) == NONCE_BYTES:
            return value
    raise WireError("answers, but not as an ftis-node of this version does")


@dataclass(frozen=True)
class Introduction:
    """What a peer says to whoever asks for its manifest. The record is signed and names the certificate that answered.

    It was made between ``asked_at_ms`` by the own clock and ``took_ms`` later.
    """

    run: Run
    record: NodeRecord
    asked_at_ms: int
    took_ms: int


async def fetch_introduction(address: Address) -> Introduction:
    """Ask a peer for its run manifest and its record, whatever its clock shows.

    Raises ConfigError when the manifest isn't usable, WireError (Refused when the peer isn't the one in the address),
    TimeoutError or AioRpcError when there is no answer.
    """
    certificate = await fetch_certificate(address)
    async with open_channel(address, certificate) as channel:
        asked_at_ms = now_ms()
        reply = await asyncio.wait_for(rpc.SwarmStub(channel).GetManifest(pb.ManifestRequest()), RPC_SECONDS)
        took_ms = now_ms() - asked_at_ms
    record = read_record(reply.record)
    check_server_record(record, certificate_sha256=certificate_sha256(certificate), expected=address.peer_id)
    run = parse_run(reply.manifest[: MAX_MANIFEST_BYTES + 1], source=f"run manifest from {address}")
    if run.run_id != record.run_id:
        raise WireError("sends a manifest that is not that of its own run")
    return Introduction(run, record, asked_at_ms, took_ms)


async def fetch_run(address: Address, expected: RunId | None) -> tuple[Run, PeerId]:
    """Get the run manifest from a peer, and who that peer is.

    Raises ConfigError when the manifest isn't usable or isn't the expected one, WireError (Refused when the
    peer isn't the one in the address), TimeoutError or AioRpcError when there is no answer.
    """
    met = await fetch_introduction(address)
    check_lifetime(met.record, now_ms=now_ms())
    if expected is not None and met.run.run_id != expected:
        raise ConfigError(f"--run-id: {address} is in run {met.run.run_id.hex()}, expected was {expected.hex()}")
    return met.run, met.record.peer_id


async def fetch_status(address: Address, seconds: float = RPC_SECONDS) -> tuple[bytes, NodeRecord]:
    """A peer's own status as JSON bytes, and the record that proves whose it is; its times may be those of a wrong
    clock. Raises WireError, and Refused when another peer than the one in the address answers.
    """
    try:
        async with asyncio.timeout(seconds):
            certificate = await fetch_certificate(address, seconds)
            async with open_channel(address, certificate, MAX_STATUS_BYTES) as channel:
                stub = rpc.SwarmStub(channel)
                reply = await stub.GetStatus(pb.StatusRequest())
                # A node of a version before the record was part of the reply shows it with its manifest.
                sealed = reply.record or (await stub.GetManifest(pb.ManifestRequest())).record
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise WireError("answers with more than a status may have") from error
        raise why_unanswered(error, seconds) from error
    record = read_record(sealed)
    check_server_record(record, certificate_sha256=certificate_sha256(certificate), expected=address.peer_id)
    return bytes(reply.status_json), record


async def ask_for_reach(address: Address, *, port: int, certificate: Certificate) -> Probe:
    """Have a peer dial this machine back where ``certificate`` answers.

    Raises WireError when the peer won't or can't, TimeoutError or AioRpcError when there is no answer.
    """
    request = pb.ReachRequest(port=port, certificate_sha256=certificate.sha256)
    async with open_channel(address, await fetch_certificate(address)) as channel:
        try:
            reply = await asyncio.wait_for(rpc.SwarmStub(channel).ProbeReach(request), RPC_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise WireError("runs an older version, which can't dial back") from error
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise WireError((error.details() or "does not dial back now")[:200]) from error
            raise
    return Probe(reply.reached, reply.host[:64], reply.reason[:200])
