"""Dialling a caller back: what a stranger can make a node do with it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from ftis_node.errors import WireError
from ftis_node.swarm import reach
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import ask_for_reach, fetch_introduction
from ftis_node.swarm.reach import PROBES, REMEMBERED_RANGES, WINDOW_SECONDS, ProbeRefused, ReachProbe
from ftis_node.swarm.service import bind
from ftis_node.swarm.tls import make_certificate
from ftis_node.types import PeerId
from tests.swarm.test_gossip import Node

CERTIFICATE, OTHER = make_certificate(), make_certificate()
CALLER = "ipv4:127.0.0.1:50000"


@contextlib.asynccontextmanager
async def answering(host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Somebody who answers TLS with CERTIFICATE; gives the port."""
    server, port = await bind(Address(host, 0), CERTIFICATE.server_credentials())
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=0)


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_peer_dials_back_and_tells_who_was_reached() -> None:
    async def scenario() -> None:
        peer = Node(1)
        async with peer.serving(), answering() as port:
            address = Address("127.0.0.1", peer.port)
            reached = await ask_for_reach(address, port=port, certificate=CERTIFICATE)
            assert (reached.reached, reached.host) == (True, "127.0.0.1")
            somebody_else = await ask_for_reach(address, port=port, certificate=OTHER)
            nobody = await ask_for_reach(address, port=closed_port(), certificate=CERTIFICATE)
            assert not somebody_else.reached
            assert somebody_else == nobody, "whether anything else listens there must not show"

    asyncio.run(scenario())


def test_the_caller_s_host_alone_is_dialled_in_either_protocol() -> None:
    async def scenario() -> None:
        async with answering() as port:
            mapped = await ReachProbe().answer("ipv6:%5B::ffff:127.0.0.1%5D:5000", port, CERTIFICATE.sha256)
            assert (mapped.reached, mapped.host) == (True, "127.0.0.1")
            elsewhere = await ReachProbe().answer("ipv4:127.0.0.2:5000", port, CERTIFICATE.sha256)
            assert (elsewhere.reached, elsewhere.host) == (False, "127.0.0.2")

    asyncio.run(scenario())


@pytest.mark.parametrize("caller", ["unix:/tmp/socket", "ipv4:localhost:80", "", "ipv6:%5Bexample.org%5D:80"])
def test_no_name_is_ever_looked_up(caller: str) -> None:
    with pytest.raises(ProbeRefused, match="sees no address"):
        asyncio.run(ReachProbe().answer(caller, 80, CERTIFICATE.sha256))


@pytest.mark.parametrize(("port", "expected"), [(0, b"x" * 32), (65_536, b"x" * 32), (80, b""), (80, b"x" * 31)])
def test_what_can_not_be_asked_for(port: int, expected: bytes) -> None:
    with pytest.raises(ProbeRefused, match="can't be"):
        asyncio.run(ReachProbe().answer(CALLER, port, expected))


def test_a_range_of_addresses_is_dialled_back_a_few_times_a_minute() -> None:
    async def scenario() -> None:
        now = 1000.0
        probe = ReachProbe(clock=lambda: now)
        async with answering() as port:
            for host in range(1, PROBES + 1):
                await probe.answer(f"ipv4:127.0.0.{host}:50000", port, CERTIFICATE.sha256)
            with pytest.raises(ProbeRefused, match="ask again in 60 s"):
                await probe.answer("ipv4:127.0.0.9:50000", port, CERTIFICATE.sha256)
            assert not (await probe.answer("ipv4:127.1.0.1:50000", port, CERTIFICATE.sha256)).reached  # another range
            now += WINDOW_SECONDS
            assert (await probe.answer(CALLER, port, CERTIFICATE.sha256)).reached

    asyncio.run(scenario())


def test_what_is_remembered_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(address: Address, seconds: float = 0.0) -> bytes:
        raise WireError("can't be reached")

    monkeypatch.setattr(reach, "fetch_certificate", nobody)

    async def scenario() -> None:
        probe = ReachProbe()
        for number in range(REMEMBERED_RANGES + 50):
            await probe.answer(f"ipv4:10.{number // 250}.{number % 250}.1:5", 80, CERTIFICATE.sha256)
        assert len(probe._lately) == REMEMBERED_RANGES

    asyncio.run(scenario())


def test_one_at_a_time_and_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the first caller takes connections and says nothing, as a tarpit does."""
    monkeypatch.setattr(reach, "DIAL_SECONDS", 0.5)

    async def scenario() -> None:
        with socket.socket() as tarpit:
            tarpit.bind(("127.0.0.1", 0))
            tarpit.listen()
            probe = ReachProbe()
            first = asyncio.create_task(probe.answer(CALLER, tarpit.getsockname()[1], CERTIFICATE.sha256))
            await asyncio.sleep(0)  # until it dials
            with pytest.raises(ProbeRefused, match="somebody else"):
                await probe.answer(CALLER, 80, CERTIFICATE.sha256)
            assert not (await asyncio.wait_for(first, 10)).reached
            assert not (await probe.answer(CALLER, closed_port(), CERTIFICATE.sha256)).reached, "it is free again"

    asyncio.run(scenario())


def test_over_the_wire_a_refusal_says_when_to_ask_again() -> None:
    async def scenario() -> None:
        peer = Node(1)
        async with peer.serving():
            address = Address("127.0.0.1", peer.port)
            for _ in range(PROBES):
                await ask_for_reach(address, port=closed_port(), certificate=CERTIFICATE)
            with pytest.raises(WireError, match=r"4 times in 60 s at most; ask again in \d+ s"):
                await ask_for_reach(address, port=closed_port(), certificate=CERTIFICATE)

    asyncio.run(scenario())


def test_a_peer_that_can_not_do_it() -> None:
    async def scenario() -> None:
        async with answering() as port:  # a server without the service, as an older one is without the call
            with pytest.raises(WireError, match="older version"):
                await ask_for_reach(Address("127.0.0.1", port), port=port, certificate=CERTIFICATE)

    asyncio.run(scenario())


def test_an_introduction_tells_the_peer_s_clock_and_who_it_is() -> None:
    async def scenario() -> None:
        peer = Node(1)
        async with peer.serving():
            met = await fetch_introduction(Address("127.0.0.1", peer.port, peer.peer_id))
            assert met.record.peer_id == peer.peer_id
            assert met.run.run_id == peer.own.run.run_id
            assert 0 <= met.record.created_at_ms - met.asked_at_ms <= met.took_ms
            with pytest.raises(WireError, match="answers instead of"):
                await fetch_introduction(Address("127.0.0.1", peer.port, PeerId(b"x" * 32)))

    asyncio.run(scenario())
