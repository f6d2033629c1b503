"""Mallory takes up connections, streams and attention; honest peers are served all the same."""

import asyncio
import contextlib
import os
import socket
import time

from ftis_node.config import NetworkConfig
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import open_channel
from ftis_node.swarm.handshake import NONCE_KEY
from ftis_node.swarm.service import PENDING_HANDSHAKES
from ftis_node.swarm.tls import fetch_certificate
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc
from tests.swarm.test_gossip import Node, hello_of, name_of, raw_stream, read_kind, self_of, until

HONEST_SECONDS = 30.0


def test_a_hundred_stalled_streams_and_two_hundred_silent_connections() -> None:
    async def scenario() -> None:
        node, honest = Node(1), Node(2)
        async with node.serving(), contextlib.AsyncExitStack() as hers:
            for _ in range(200):
                hers.enter_context(socket.create_connection(("127.0.0.1", node.port)))
            for _ in range(100):
                await hers.enter_async_context(raw_stream(node, hello=False))
            async with honest.serving(node):
                name = honest.publish(b"delivered past all of them")
                await until(lambda: name in node.batches, "an honest batch", HONEST_SECONDS)
                back = node.publish(b"and back")
                await until(lambda: back in honest.batches, "a batch back", HONEST_SECONDS)

    asyncio.run(scenario())


def test_the_oldest_stranger_at_the_door_makes_room_for_the_next() -> None:
    async def scenario() -> None:
        node = Node(1)
        async with node.serving(), contextlib.AsyncExitStack() as hers:
            first = await hers.enter_async_context(raw_stream(node, hello=False))
            for _ in range(PENDING_HANDSHAKES):
                await hers.enter_async_context(raw_stream(node, hello=False))
            started = time.monotonic()
            await first.read()  # ends
            assert time.monotonic() - started < 5  # and not by its own deadline of 10 s

    asyncio.run(scenario())


def test_mallorys_many_identities_that_say_nothing_give_way() -> None:
    """She takes every place with identities of her own, and then stalls. The next honest peer gets one."""

    async def scenario() -> None:
        node = Node(1, config=NetworkConfig(connections=6, ping_seconds=0.4, silence_seconds=60))
        honest = Node(2, config=NetworkConfig(ping_seconds=0.2))
        address = Address("127.0.0.1", 0)
        async with node.serving(), contextlib.AsyncExitStack() as hers:
            address = Address("127.0.0.1", node.port)
            certificate = await fetch_certificate(address)
            for number in range(100, 106):
                channel = await hers.enter_async_context(open_channel(address, certificate))
                call = rpc.SwarmStub(channel).Exchange()
                nonce = dict(await call.initial_metadata())[NONCE_KEY]
                await call.write(hello_of(self_of(number), certificate, nonce))
                await read_kind(call, "hello")
            await until(lambda: len(node.gossip.sessions) == 6, "all places are taken")
            async with honest.serving(node):
                await until(lambda: honest.peer_id in node.gossip.sessions, "a place for the honest peer")
                name = honest.publish(b"from the newcomer")
                await until(lambda: name in node.batches, "its batch")
            assert len(node.gossip.sessions) <= 6

    asyncio.run(scenario())


def test_a_thousand_messages_a_second_are_read_at_the_rate_that_one_peer_may_have() -> None:
    async def scenario() -> None:
        rate = 20.0
        node, honest = Node(1, config=NetworkConfig(peer_messages_per_second=rate)), Node(2)
        async with node.serving(), honest.serving(node), raw_stream(node) as mallory:
            await until(lambda: len(node.gossip.sessions) == 2, "both connections")
            (hers,) = (s for peer, s in node.gossip.sessions.items() if peer != honest.peer_id)
            pongs = 0

            async def flood() -> None:
                nonce = 0
                while True:
                    names = os.urandom(32 * 64)
                    await mallory.write(pb.Frame(have=pb.Have(names=names, sizes=b"\1\0\0\0" * 64)))
                    await mallory.write(pb.Frame(ping=pb.Ping(nonce=nonce)))
                    nonce += 1
                    await asyncio.sleep(0.002)

            async def count() -> None:
                nonlocal pongs
                while True:
                    pongs += (await mallory.read()).WhichOneof("kind") == "pong"

            started = time.monotonic()
            tasks = [asyncio.create_task(flood()), asyncio.create_task(count())]
            for number in range(20):
                name = honest.publish(b"honest %d" % number)
                await until(lambda name=name: name in node.batches, "an honest batch", HONEST_SECONDS)
                await asyncio.sleep(0.1)
            seconds = time.monotonic() - started
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert pongs <= rate * (seconds + 3.0) / 2 + 2  # every second message is a ping; a burst of 3 s
            assert hers.throttled_seconds > 1
            honest_session = node.gossip.sessions[honest.peer_id]
            assert honest_session.throttled_seconds == 0
            assert len(hers.offers) <= 64 * (rate * (seconds + 3.0) / 2 + 2)

    asyncio.run(scenario())


def test_bytes_have_a_budget_in_each_direction_and_still_arrive() -> None:
    async def scenario() -> None:
        slow = NetworkConfig(peer_bytes_per_second=300_000)
        sender, receiver = Node(1), Node(2, config=slow)
        async with sender.serving(), receiver.serving(sender):
            started = time.monotonic()
            names = [sender.publish(os.urandom(500_000)) for _ in range(4)]
            await until(lambda: all(name in receiver.batches for name in names), "all of them", 60)
            assert time.monotonic() - started > (2_000_000 - 4 * 300_000) / 300_000  # the burst is 3 s
            (session,) = receiver.gossip.sessions.values()
            assert session.throttled_seconds > 0
            back = receiver.publish(os.urandom(100_000))
            await until(lambda: back in sender.batches, "a batch back")

    asyncio.run(scenario())


def test_newest_first() -> None:
    """A node that comes late asks for what was made last first."""

    async def scenario() -> None:
        node, late = Node(1), Node(2)
        names = [name_of(b"batch %d" % number) for number in range(200)]
        for number, name in reversed(list(enumerate(names))):
            node.batches[name] = b"batch %d" % number  # ``live`` lists the newest first
        newest_first = list(reversed(names))

        async with node.serving(), late.serving(node):
            await until(lambda: len(late.batches) == 200, "all batches")
            assert late.deliveries[:32] == newest_first[:32]

    asyncio.run(scenario())
