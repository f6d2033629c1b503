"""The DHT between real nodes: what is found, and what Mallory can't do to it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

from ftis_node.clock import now_ms
from ftis_node.errors import DiscoveryError
from ftis_node.swarm import discovery as discovery_module
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.discovery import BoundedStorage, Discovery, key_of, shard_of
from ftis_node.swarm.handshake import Reach
from ftis_node.swarm.records import open_record, read_record, seal_record
from tests.swarm.test_gossip import OTHER_RUN, RUN, self_of

LOCAL = "/ip4/127.0.0.1/tcp/0"
ALICE = replace(self_of(1), reach=Reach((Address("10.0.0.1", 5),)))


@contextlib.asynccontextmanager
async def dht(count: int) -> AsyncIterator[list[Discovery]]:
    nodes = [await Discovery.start(RUN, listen=LOCAL) for _ in range(count)]
    try:
        for node in nodes[1:]:
            await node.join(await nodes[0].addresses())
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


@contextlib.asynccontextmanager
async def mallory_in(node: Discovery) -> AsyncIterator[DHTNode]:
    """A DHT node without our guard: it asks others to store whatever it likes."""
    mallory = await DHTNode.create(
        host_maddrs=[LOCAL], initial_peers=await node.addresses(), use_relay=False, auto_nat=False, nat_port_map=False
    )
    try:
        yield mallory
    finally:
        await mallory.shutdown()


def place_of(sealed: bytes) -> tuple[DHTID, str, float]:
    """Key, subkey and expiry that belong to a record."""
    record = read_record(sealed)
    key = key_of(record.run_id, record.created_at_ms, shard_of(record.peer_id))
    return DHTID.generate(source=key), record.peer_id.hex(), record.expires_at_ms / 1000


def test_everybody_finds_everybody() -> None:
    async def scenario() -> None:
        async with dht(4) as nodes:
            selves = [replace(self_of(10 + n), reach=Reach((Address("10.0.0.1", n + 1),))) for n in range(4)]
            for node, own in zip(nodes, selves, strict=True):
                assert await node.publish(own.record(now_ms()))
            for node in nodes:
                found = await node.find(everywhere=True)
                assert {record.peer_id for record in found} == {own.peer_id for own in selves}
                assert node.nodes_known == 3

    asyncio.run(scenario())


def test_nobody_there_is_said_and_is_not_fatal() -> None:
    async def scenario() -> None:
        async with dht(1) as (node,):
            other = (await node.addresses())[0].rsplit("/", 1)[1]
            with pytest.raises(DiscoveryError, match="can't be reached"):
                await node.join([f"/ip4/127.0.0.1/tcp/1/p2p/{other}"])
            assert await node.find(everywhere=True) == []

    asyncio.run(scenario())


def test_what_mallory_may_not_store() -> None:
    """Plain values that squat on a key, foreign keys and runs, forged and oversized records."""

    async def scenario() -> None:
        async with dht(1) as (node,), mallory_in(node) as mallory:
            sealed = ALICE.record(now_ms())
            key, subkey, expiry = place_of(sealed)
            packed, far = MSGPackSerializer.dumps(sealed), time.time() + 10**8
            other = replace(ALICE, run=OTHER_RUN).record(now_ms())
            forged = bytearray(sealed)
            forged[-1] ^= 1
            attempts = [
                (key, MSGPackSerializer.dumps(b"squatting"), far, None),
                (key, packed, expiry, None),
                (key, packed, far, subkey),
                (DHTID.generate(source="elsewhere"), packed, expiry, subkey),
                (key, packed, expiry, "11" * 32),
                (key, MSGPackSerializer.dumps(bytes(forged)), expiry, subkey),
                (key, MSGPackSerializer.dumps(b"x" * 100_000), expiry, subkey),
                (key, b"\xc1 no msgpack", expiry, subkey),
                (place_of(other)[0], MSGPackSerializer.dumps(other), expiry, subkey),
            ]
            target = node._node.peer_id
            for wanted, value, until, below in attempts:
                assert await mallory.protocol.call_store(target, [wanted], [value], [until], [below]) == [False]
            assert await mallory.protocol.call_store(target, [key], [packed], [expiry], [subkey]) == [True]

    asyncio.run(scenario())


def test_one_invalid_part_does_not_void_the_rest() -> None:
    """Mallory sends a whole dictionary with one bad entry: it is refused, what was there stays readable."""

    async def scenario() -> None:
        async with dht(2) as nodes, mallory_in(nodes[0]) as mallory:
            await nodes[0].publish(ALICE.record(now_ms()))
            key, _, expiry = place_of(ALICE.record(now_ms()))
            poisoned = DictionaryDHTValue()
            poisoned.store("ff" * 32, MSGPackSerializer.dumps(b"poison"), expiry)
            for node in nodes:
                target = node._node.peer_id
                assert await mallory.protocol.call_store(target, [key], [poisoned], [expiry]) == [False]
            for node in nodes:
                assert [r.peer_id for r in await node.find(everywhere=True)] == [ALICE.peer_id]

    asyncio.run(scenario())


def test_a_replayed_older_record_does_not_shorten_the_newer_one() -> None:
    """hivemind's own storage drops the newer record when the older one expires."""
    made = now_ms() - 60_000
    older = open_record(ALICE.record(made), now_ms=now_ms())
    short = seal_record(replace(older, expires_at_ms=now_ms() + 400), ALICE.identity)
    newer = ALICE.record(made + 1)

    async def scenario() -> None:
        async with dht(1) as (node,), mallory_in(node) as mallory:
            await node.publish(newer)
            key, subkey, expiry = place_of(short)
            value = MSGPackSerializer.dumps(short)
            stored = await mallory.protocol.call_store(node._node.peer_id, [key], [value], [expiry], [subkey])
            assert stored == [False]
            await asyncio.sleep(0.8)
            (found,) = await node.find(everywhere=True)
            assert found.created_at_ms == made + 1

    asyncio.run(scenario())


def test_a_dictionary_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "SUBKEYS_PER_KEY", 3)
    storage, key, later = BoundedStorage(), DHTID.generate(source="k"), time.time() + 60
    assert [storage.store_subkey(key, str(n), b"v", later) for n in range(5)] == [True, True, True, False, False]
    assert storage.store_subkey(key, "0", b"newer", later + 1)  # those inside are still renewed
    assert not storage.store_subkey(key, "0", b"older", later)


def test_keys_change_with_the_hour_and_are_spread() -> None:
    hour = 3_600_000
    assert key_of(RUN.run_id, 5 * hour, 3) == key_of(RUN.run_id, 6 * hour - 1, 3)
    assert len({key_of(RUN.run_id, made * hour, shard) for made in range(3) for shard in range(16)}) == 48


def test_a_clock_that_is_wrong_is_said_plainly() -> None:
    error = Exception("local time must be within 3 seconds  of others(local: 5.0, peer: 10.0)")
    assert "its clock and the peer's differ (5 s apart" in discovery_module._explain(error)
