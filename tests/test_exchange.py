"""What a node makes of delivered batches, beyond their verification: a full store, and signs of a twin."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.config import CeilingsConfig
from ftis_node.database_thread import DatabaseThread
from ftis_node.exchange import BatchExchange
from ftis_node.identity import Identity
from ftis_node.store.network import NetworkStore
from ftis_node.swarm.records import NodeRecord, seal_record
from ftis_node.swarm.session import Neighbour
from ftis_node.wire.codec import batch_name, encode_batch
from tests.builders import ALICE, BOB, MALLORY, RUN, group, payload, signed

INSTANCE = b"i" * 16
NEIGHBOUR = Neighbour(BOB.peer_id, "in", "", "10.0.0.0/24", "", "", ())


class Party:
    """Alice's exchange over a store of her own."""

    def __init__(self, home: Path, *, megabytes: int = 16) -> None:
        self.store = NetworkStore(home)
        self.database = DatabaseThread(self.store)
        # Not at import: a record of that time may be out of date when a long test run comes here.
        self.started_ms = now_ms()
        ceilings = CeilingsConfig.model_construct(store_megabytes=megabytes)
        self.exchange = BatchExchange(self.database, RUN, ALICE, ceilings, b"", self.started_ms, INSTANCE)
        self.twins = 0
        self.exchange.on_twin = self._count

    def _count(self) -> None:
        self.twins += 1

    async def deliver(self, author: Identity, *, created_at_ms: int) -> bool:
        batch = signed(payload(group(3)), author=author, epoch=self.started_ms - 5, created_at_ms=created_at_ms)
        return await self.exchange.deliver(batch_name(batch.header), encode_batch(batch), NEIGHBOUR)


def with_party(home: Path, scenario: Callable[[Party], Awaitable[None]], *, megabytes: int = 16) -> None:
    party = Party(home, megabytes=megabytes)

    async def run() -> None:
        try:
            await scenario(party)
        finally:
            party.database.close()

    asyncio.run(run())


def test_a_full_store_refuses_and_blames_nobody(tmp_path: Path) -> None:
    async def scenario(party: Party) -> None:
        assert not await party.deliver(BOB, created_at_ms=now_ms())
        assert party.store.peers.score(BOB.peer_id).value == 0
        assert party.store.live(0, 10) == []

    with_party(tmp_path, scenario, megabytes=0)


def test_an_own_batch_made_after_this_start_and_not_here_is_a_twins(tmp_path: Path) -> None:
    async def scenario(party: Party) -> None:
        assert not await party.deliver(ALICE, created_at_ms=now_ms() + 1)
        assert party.twins == 1

    with_party(tmp_path, scenario)


def test_an_own_batch_that_was_lost_with_an_older_store_is_no_twins(tmp_path: Path) -> None:
    async def scenario(party: Party) -> None:
        assert not await party.deliver(ALICE, created_at_ms=party.started_ms - 1)
        assert party.twins == 0

    with_party(tmp_path, scenario)


def record_of(identity: Identity, *, instance: bytes, created_at_ms: int) -> bytes:
    record = NodeRecord(
        identity.peer_id, (), b"c" * 32, RUN.run_id, "m", "1", 1, instance, created_at_ms, created_at_ms + 60_000
    )
    return seal_record(record, identity)


def test_only_a_later_record_of_another_start_proves_a_twin(tmp_path: Path) -> None:
    """Mallory shows this node its own record, an old one, hers, and junk: none of them means anything."""

    async def scenario(party: Party) -> None:
        later = party.started_ms + 10
        for sealed in (
            record_of(ALICE, instance=INSTANCE, created_at_ms=later),
            record_of(ALICE, instance=b"o" * 16, created_at_ms=party.started_ms - 10),
            record_of(MALLORY, instance=b"o" * 16, created_at_ms=later),
            b"junk",
        ):
            await party.exchange.twin(sealed)
        assert party.twins == 0
        await party.exchange.twin(record_of(ALICE, instance=b"o" * 16, created_at_ms=later))
        assert party.twins == 1

    with_party(tmp_path, scenario)
