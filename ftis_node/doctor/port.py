"""The port that the node listens on: whether it can be taken, and whether others reach it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from ftis_node.config import NetworkConfig
from ftis_node.doctor.findings import Verdict, failure, not_checked, ok, warning
from ftis_node.doctor.journal import in_thread
from ftis_node.errors import WireError
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.swarm.dialing import ask_for_reach
from ftis_node.swarm.listening import obstacle_to
from ftis_node.swarm.service import bind
from ftis_node.swarm.tls import CERTIFICATE_FILE, Certificate, load_or_create_certificate, make_certificate

ASK_SECONDS = 12.0
PEERS_ASKED = 3


@dataclass(frozen=True)
class Listening:
    """Where this machine answers now, and with which certificate. Nowhere: ``port`` is 0."""

    verdict: Verdict
    port: int = 0
    certificate: Certificate | None = None


@asynccontextmanager
async def listening(home: Path, network: NetworkConfig, *, daemon_listens: str | None) -> AsyncIterator[Listening]:
    """Take the port until the end of the block; where the home's own daemon has it, that one answers.

    Raises HomeError when the home's certificate is damaged.
    """
    if daemon_listens is not None:
        port = parse_address(daemon_listens, source="store").port
        verdict = ok(f"{daemon_listens} is held by this home's own daemon")
        yield Listening(verdict, port, load_or_create_certificate(home))
        return
    listen = parse_address(network.listen, source="network.listen", lowest_port=0)
    if (obstacle := await in_thread(obstacle_to, listen)) is not None:
        yield Listening(failure(obstacle.found, obstacle.advice))
        return
    # Nothing is written into the home: a node that has no certificate yet is tried with one made for this.
    made = not (home / CERTIFICATE_FILE).exists()
    certificate = make_certificate() if made else load_or_create_certificate(home)
    server, port = await bind(listen, certificate.server_credentials())
    await server.start()  # without a service: whoever dials sees the certificate, and no more
    try:
        free = f"{listen.target} is free" if listen.port else f"any free one on {listen.host} is taken, {port} now"
        yield Listening(ok(free), port, certificate)
    finally:
        await server.stop(grace=0)


async def reach(here: Listening, peers: Sequence[Address], network: NetworkConfig) -> Verdict:
    """Ask peers in turn to dial this machine back, until one gets through."""
    if here.certificate is None:
        return not_checked("nothing listens on the port")
    if not peers:
        return not_checked("no peer is there to dial back")
    hosts, complaints = [], []
    for peer in peers[:PEERS_ASKED]:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                probe = await ask_for_reach(peer, port=here.port, certificate=here.certificate)
        except (TimeoutError, grpc.aio.AioRpcError):
            complaints.append(f"{peer.target} does not answer")
        except WireError as error:
            complaints.append(f"{peer.target} {error}")
        else:
            if probe.reached:
                return ok(f"{peer.target} dials this machine at {probe.host}:{here.port}")
            hosts.append(probe.host)
    if not hosts:
        return not_checked("; ".join(complaints))
    found = f"nobody reaches {hosts[0]}:{here.port} from outside ({len(hosts)} tried)"
    if parse_address(network.listen, source="network.listen", lowest_port=0).host in ("127.0.0.1", "::1", "localhost"):
        return warning(f"{found}: network.listen is this machine alone", "--listen 0.0.0.0:PORT listens to others too")
    return warning(
        f"{found}: behind a NAT or firewall this is normal, peers reach you through the connections that you open",
        f"to be dialled as well, open or forward TCP port {here.port}, and say --set network.advertise=HOST:PORT",
    )
