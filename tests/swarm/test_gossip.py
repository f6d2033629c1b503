"""Gossip between real gRPC servers on loopback; what they hold is a dictionary instead of a store."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from ftis_node.clock import now_ms
from ftis_node.config import NetworkConfig
from ftis_node.identity import Identity
from ftis_node.manifest import Run, parse_run
from ftis_node.swarm.addresses import Address, address_range, parse_address
from ftis_node.swarm.dialing import fetch_run, fetch_status, keep_dialling, open_channel
from ftis_node.swarm.gossip import Gossip
from ftis_node.swarm.handshake import NONCE_KEY, Reach, Refused, Self, client_hello
from ftis_node.swarm.records import NodeRecord
from ftis_node.swarm.service import SwarmService, bind, start
from ftis_node.swarm.session import Neighbour, Session
from ftis_node.swarm.tls import fetch_certificate, make_certificate, public_key_sha256
from ftis_node.types import BatchName, PeerId, RunId
from ftis_node.wire.limits import MAX_BATCH_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc

TASK = f'[[tasks]]\nname = "addition"\nsize = 1000\ndata_hash = "{"0" * 64}"\n'
RUN = parse_run(f'name = "test"\n{TASK}'.encode(), source="run.toml")
OTHER_RUN = parse_run(f'name = "other"\n{TASK}'.encode(), source="run.toml")


def name_of(data: bytes) -> BatchName:
    return BatchName(hashlib.sha256(data).digest())


def self_of(number: int, run: Run = RUN) -> Self:
    return Self(
        identity=Identity.from_seed(bytes([number]) * 32), certificate=make_certificate(), run=run, version="1",
        model="tiny", reach=Reach(), listen_port=1, instance=os.urandom(16),
    )  # fmt: skip


class Node:
    """A real server and real dialers around a dictionary of batches."""

    def __init__(self, number: int, run: Run = RUN, config: NetworkConfig = NetworkConfig()) -> None:
        self.own = self_of(number, run)
        self.peer_id = self.own.peer_id
        self.pins: dict[str, PeerId] = {}
        self.batches: dict[BatchName, bytes] = {}
        self.deliveries: list[BatchName] = []
        self.faults: list[str] = []
        self.twins: list[bytes] = []
        self.reachable: list[tuple[PeerId, str]] = []
        self.hints: list[Address] = []
        self.refusal: str | None = None
        self.checking = asyncio.Event()
        self.checking.set()
        self.dials: list[str] = []
        self.gossip = Gossip(self, self.peer_id, config)
        self.port = 0

    async def live(self) -> list[tuple[BatchName, int]]:
        return [(name, len(data)) for name, data in self.batches.items()]

    async def unknown(self, names: list[BatchName]) -> set[BatchName]:
        return {name for name in names if name not in self.batches}

    async def load(self, name: BatchName) -> bytes | None:
        return self.batches.get(name)

    async def deliver(self, name: BatchName, data: bytes, neighbour: Neighbour) -> bool:
        self.deliveries.append(name)
        await self.checking.wait()
        if name_of(data) != name:
            self.faults.append("another batch than announced")
            return False
        self.batches[name] = data
        return True

    async def addresses(self) -> list[tuple[PeerId, str]]:
        return self.reachable

    async def learn(self, addresses: list[Address]) -> None:
        self.hints += addresses

    async def twin(self, sealed: bytes) -> None:
        self.twins.append(sealed)

    async def fault(self, neighbour: Neighbour, reason: str, detail: str) -> None:
        self.faults.append(detail)

    def publish(self, data: bytes) -> BatchName:
        name = name_of(data)
        self.batches[name] = data
        self.gossip.announce(name, len(data))
        return name

    async def _connected(self, session: Session, connected: bool) -> None:
        pass

    async def _admit(self, record: NodeRecord) -> str | None:
        return self.refusal

    async def _status(self) -> bytes:
        return b'{"state": "fine"}'

    async def _report_dial(self, address: Address, state: str, retry_in: float | None, peer: PeerId | None) -> None:
        self.dials.append(state)
        if peer is not None:
            self.pins[address.target] = peer

    async def _remembered(self, address: Address) -> PeerId | None:
        return self.pins.get(address.target)

    @contextlib.asynccontextmanager
    async def serving(self, *dial: "Node") -> AsyncIterator["Node"]:
        listen = Address("127.0.0.1", self.port)
        server, self.port = await bind(listen, self.own.certificate.server_credentials())
        await start(server, SwarmService(self.own, self.gossip, self._status, self._connected, self._admit))
        try:
            async with self.dialling(*dial):
                yield self
        finally:
            await server.stop(grace=0)

    @contextlib.asynccontextmanager
    async def dialling(self, *peers: "Node") -> AsyncIterator[None]:
        dialers = [
            asyncio.create_task(
                keep_dialling(
                    Address("127.0.0.1", node.port), self.own, self.gossip,
                    backoff_max=0.2, report=self._report_dial, connected=self._connected,
                    remembered=self._remembered, admit=self._admit,
                )
            )
            for node in peers
        ]  # fmt: skip
        try:
            yield
        finally:
            for task in dialers:
                task.cancel()
            await asyncio.gather(*dialers, return_exceptions=True)


async def until(condition, what: str, seconds: float = 20.0) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.02)

    try:
        await asyncio.wait_for(poll(), seconds)
    except TimeoutError:
        pytest.fail(f"still not after {seconds:.0f} s: {what}")


@contextlib.asynccontextmanager
async def raw_stream(node: Node, *, hello: bool = True):
    """Mallory's own client: after an honest hello she speaks frames by hand."""
    address = Address("127.0.0.1", node.port)
    certificate = await fetch_certificate(address)
    async with open_channel(address, certificate) as channel:
        call = rpc.SwarmStub(channel).Exchange()
        nonce = dict(await call.initial_metadata())[NONCE_KEY]
        if hello:
            await call.write(hello_of(MALLORY, certificate, nonce))
        yield call
        call.cancel()


def hello_of(own: Self, certificate: bytes, nonce: bytes) -> pb.Frame:
    return client_hello(own, server_key_sha256=public_key_sha256(certificate), nonce=nonce, now_ms=now_ms())


async def read_kind(call, kind: str) -> pb.Frame:
    """The next frame of a kind; pings and the like in between are left unanswered."""
    async with asyncio.timeout(10):
        while (frame := await call.read()).WhichOneof("kind") != kind:
            pass
    return frame


MALLORY = self_of(200)


def test_a_batch_reaches_everybody_through_a_node_in_the_middle() -> None:
    async def scenario() -> None:
        middle, left, right = Node(1), Node(2), Node(3)
        async with middle.serving(), left.serving(middle), right.serving(middle):
            before = left.publish(b"made before anybody was connected")
            await until(lambda: before in right.batches, "a batch from before the connection")
            large = left.publish(bytes(range(256)) * 3000)
            await until(lambda: large in right.batches, "a batch of many chunks")
            back = right.publish(b"the other way")
            await until(lambda: back in left.batches, "a batch the other way")
            assert right.batches[large] == left.batches[large]
            assert sorted(right.deliveries) == sorted([before, large])  # each payload came once

    asyncio.run(scenario())


def test_who_loses_a_connection_dials_again_unless_it_is_stopping() -> None:
    async def scenario() -> None:
        stays, dials = Node(1), Node(2)
        async with stays.serving(), dials.dialling(stays):
            await until(lambda: stays.gossip.sessions, "the first connection")
            dials.gossip.sessions[stays.peer_id].close("lost")
            await until(lambda: dials.dials.count("connected") == 2, "the second connection")
            dials.gossip.stopping.set()
            dials.gossip.sessions[stays.peer_id].close("stopping")
            await until(lambda: not stays.gossip.sessions, "the end of it")
            await asyncio.sleep(1.0)  # several times the longest wait before another try
            assert dials.dials.count("connected") == 2

    asyncio.run(scenario())


def test_a_node_that_comes_back_gets_what_it_missed() -> None:
    async def scenario() -> None:
        stays, leaves = Node(1), Node(2)
        async with stays.serving():
            async with leaves.serving(stays):
                await until(lambda: leaves.gossip.sessions, "the first connection")
            missed = stays.publish(b"published meanwhile")
            async with leaves.serving(stays):
                await until(lambda: missed in leaves.batches, "the missed batch")

    asyncio.run(scenario())


def test_a_dialer_outlives_a_peer_that_is_not_there_yet() -> None:
    async def scenario() -> None:
        late, dialer = Node(1), Node(2)
        async with late.serving():
            pass  # takes a port and leaves
        async with dialer.serving(late):
            await until(lambda: dialer.dials, "a failed dial", seconds=30)
            async with late.serving():
                await until(lambda: late.peer_id in dialer.gossip.sessions, "the connection", seconds=30)
        assert any(state.startswith("can't be reached") for state in dialer.dials)

    asyncio.run(scenario())


def test_both_dial_each_other_and_one_session_stays() -> None:
    async def scenario() -> None:
        first, second = Node(1), Node(2)
        async with first.serving(), second.serving(), first.dialling(second), second.dialling(first):
            await until(lambda: first.gossip.sessions and second.gossip.sessions, "a connection")
            await asyncio.sleep(0.5)
            name = first.publish(b"once")
            await until(lambda: name in second.batches, "a batch")
            assert second.deliveries == [name]
            smaller, larger = sorted((first, second), key=lambda node: node.peer_id)
            assert smaller.gossip.sessions[larger.peer_id].neighbour.direction == "out"
            assert larger.gossip.sessions[smaller.peer_id].neighbour.direction == "in"

    asyncio.run(scenario())


def test_a_stranger_to_the_run_is_told_why() -> None:
    async def scenario() -> None:
        node, stranger = Node(1), Node(2, run=OTHER_RUN)
        async with node.serving(), stranger.serving(node):
            await until(lambda: stranger.dials, "a refusal")
            assert "the peer is in run" in stranger.dials[0]
            assert not node.gossip.sessions

    asyncio.run(scenario())


def test_a_peer_that_is_not_admitted_is_told_why() -> None:
    async def scenario() -> None:
        node, banned = Node(1), Node(2)
        node.refusal = "you are banned for 59 more minutes: bad manners"
        async with node.serving(), banned.serving(node):
            await until(lambda: banned.dials, "a refusal")
            assert "you are banned for 59 more minutes" in banned.dials[0]
            assert not node.gossip.sessions

    asyncio.run(scenario())


def test_neighbours_tell_each_other_where_others_are_and_measure_the_round_trip() -> None:
    async def scenario() -> None:
        node, curious = Node(1), Node(2)
        node.reachable = [(PeerId(b"x" * 32), "10.0.0.1:5"), (PeerId(b"y" * 32), "[::1]:6")]
        async with node.serving(), curious.serving(node):
            await until(lambda: len(curious.hints) == 2, "hints")
            assert [(hint.peer_id, hint.target) for hint in curious.hints] == node.reachable
            session = curious.gossip.sessions[node.peer_id]
            await until(lambda: session.round_trip_ms is not None, "a pong")
            (inbound,) = node.gossip.sessions.values()
            assert inbound.neighbour.dialable == (Address("127.0.0.1", 1, curious.peer_id),)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pb.Frame(peers=pb.Peers(entries=b"x" * 40)), "a peer's address that is none"),
        (pb.Frame(peers=pb.Peers(entries=b"x" * 32)), "cut off"),
        (pb.Frame(peers=pb.Peers(entries=(b"x" * 32 + b"\x03h:1") * 65)), "more than 64"),
        (pb.Frame(have=pb.Have(names=b"x" * 33, sizes=b"\0" * 4)), "33 bytes of names"),
        (pb.Frame(have=pb.Have(names=b"x" * 32, sizes=b"\0" * 3)), "3 bytes of sizes"),
        (pb.Frame(have=pb.Have(names=b"x" * 32, sizes=b"\xff" * 4)), f"1 to {MAX_BATCH_BYTES} are allowed"),
        (pb.Frame(want=pb.Want(names=b"x")), "1 bytes of names"),
        (pb.Frame(), "has no place here"),
        (pb.Frame(hello=pb.Hello()), "has no place here"),
    ],
)
def test_mallory_breaks_the_protocol_and_only_her_session_ends(frame: pb.Frame, expected: str) -> None:
    async def scenario() -> None:
        node, honest = Node(1), Node(2)
        async with node.serving(), honest.serving(node), raw_stream(node) as mallory:
            await until(lambda: len(node.gossip.sessions) == 2, "both connections")
            await mallory.write(frame)
            await until(lambda: node.faults, "a fault")
            assert expected in node.faults[0]
            await until(lambda: len(node.gossip.sessions) == 1, "the end of mallory's session")
            name = honest.publish(b"still served")
            await until(lambda: name in node.batches, "an honest batch")

    asyncio.run(scenario())


def test_what_is_being_checked_is_not_asked_of_a_second_neighbour() -> None:
    async def scenario() -> None:
        node, first, second = Node(1), Node(2), Node(3)
        async with node.serving(), first.serving(node), second.serving(node):
            await until(lambda: len(node.gossip.sessions) == 2, "both connections")
            node.checking.clear()  # verification takes its time
            name = first.publish(b"the same from both")
            await until(lambda: node.deliveries, "the first delivery")
            second.publish(b"the same from both")
            await until(lambda: name in node.gossip.sessions[second.peer_id].offers, "the second offer")
            await asyncio.sleep(0.3)
            node.checking.set()
            await until(lambda: name in node.batches, "the batch")
            await asyncio.sleep(0.3)
            assert node.deliveries == [name]

    asyncio.run(scenario())


def test_mallory_sends_other_bytes_than_she_announced() -> None:
    async def scenario() -> None:
        node = Node(1)
        async with node.serving(), raw_stream(node) as mallory:
            await mallory.read()
            name = name_of(b"good")
            await mallory.write(pb.Frame(have=pb.Have(names=name, sizes=(4).to_bytes(4, "little"))))
            assert (await read_kind(mallory, "want")).want.names == name
            await mallory.write(pb.Frame(chunk=pb.Chunk(name=name, data=b"too much", last=True)))
            await until(lambda: node.faults, "a fault")
            assert "doesn't continue the batch" in node.faults[0]
            assert not node.batches

    asyncio.run(scenario())


def test_mallory_can_not_keep_a_batch_away_by_sending_junk_under_its_name() -> None:
    async def scenario() -> None:
        node, honest = Node(1), Node(2)
        data = b"what mallory wants to hide"
        name = name_of(data)
        async with node.serving(), raw_stream(node) as mallory:
            await mallory.write(pb.Frame(have=pb.Have(names=name, sizes=len(data).to_bytes(4, "little"))))
            await read_kind(mallory, "want")
            async with honest.serving(node):
                honest.publish(data)
                honest_id = honest.peer_id
                await until(
                    lambda: honest_id in node.gossip.sessions and name in node.gossip.sessions[honest_id].offers,
                    "the honest offer",
                )
                await mallory.write(pb.Frame(chunk=pb.Chunk(name=name, data=b"x" * len(data), last=True)))
                await until(lambda: name in node.batches, "the real batch")
                assert node.batches[name] == data

    asyncio.run(scenario())


def test_mallory_pushes_what_nobody_asked_for() -> None:
    async def scenario() -> None:
        node = Node(1)
        async with node.serving(), raw_stream(node) as mallory:
            await mallory.read()
            await mallory.write(pb.Frame(chunk=pb.Chunk(name=name_of(b"x"), data=b"x", last=True)))
            await mallory.write(pb.Frame(ping=pb.Ping(nonce=7)))
            assert (await read_kind(mallory, "pong")).pong.nonce == 7
            assert not node.deliveries

    asyncio.run(scenario())


def test_mallory_announces_and_never_delivers_so_the_batch_is_asked_of_another() -> None:
    async def scenario() -> None:
        node, honest = Node(1, config=NetworkConfig(want_seconds=0.3, ping_seconds=0.1)), Node(2)
        data = b"wanted by all"
        async with node.serving(), raw_stream(node) as mallory:
            await mallory.write(pb.Frame(have=pb.Have(names=name_of(data), sizes=len(data).to_bytes(4, "little"))))
            await until(lambda: node.gossip.sessions and next(iter(node.gossip.sessions.values())).asked, "a want")
            async with honest.serving(node):
                honest.publish(data)
                await until(lambda: name_of(data) in node.batches, "the batch from the honest node")

    asyncio.run(scenario())


def test_silent_connections_end() -> None:
    async def scenario() -> None:
        node = Node(1, config=NetworkConfig(silence_seconds=0.5, ping_seconds=60.0))
        async with node.serving(), raw_stream(node):
            await until(lambda: node.gossip.sessions, "the connection")
            await until(lambda: not node.gossip.sessions, "its end")

    asyncio.run(scenario())


def test_manifest_and_status_can_be_asked_for() -> None:
    async def scenario() -> None:
        node = Node(1)
        async with node.serving():
            address = Address("127.0.0.1", node.port)
            run, peer = await fetch_run(address, None)
            assert (run.run_id, peer) == (RUN.run_id, node.peer_id)
            with pytest.raises(Exception, match="--run-id"):
                await fetch_run(address, RunId(b"x" * 32))
            status, record = await fetch_status(address)
            assert (status, record.peer_id) == (b'{"state": "fine"}', node.peer_id)
            with pytest.raises(Refused, match="answers instead of"):
                await fetch_status(Address("127.0.0.1", node.port, PeerId(b"x" * 32)))

    asyncio.run(scenario())


def test_a_port_in_use_is_said_plainly() -> None:
    async def scenario() -> None:
        first, second = Node(1), Node(2)
        async with first.serving():
            second.port = first.port
            with pytest.raises(Exception, match="is the port in use"):
                async with second.serving():
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["host", "host:", "host:0", "host:70000", "http://host:1", "zz@host:1", "::1:5", ""])
def test_bad_addresses_are_refused_with_the_form_that_is_allowed(text: str) -> None:
    with pytest.raises(Exception, match=r"--peers: .*(host:port|from 1 to 65535)"):
        parse_address(text, source="--peers")


def test_addresses_with_and_without_a_peer_id() -> None:
    assert parse_address("example.org:47100", source="x") == Address("example.org", 47100)
    assert parse_address("[::1]:5", source="x").target == "[::1]:5"
    address = parse_address(f"{'ab' * 32}@10.0.0.1:5", source="x")
    assert address.peer_id == bytes.fromhex("ab" * 32)
    assert parse_address(str(address), source="x") == address


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.1.2.3:5555", "10.1.2.0/24"),
        ("ipv6:%5B2001:db8:1:2::3%5D:5555", "2001:db8:1::/48"),
        ("ipv6:[::ffff:10.1.2.3]:5", "10.1.2.0/24"),
        ("unix:", "unknown"),
    ],
)
def test_address_ranges(peer: str, expected: str) -> None:
    assert address_range(peer) == expected
