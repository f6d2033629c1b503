"""Finding peers of the run in a hivemind DHT. Importing this module imports torch: only when the DHT is on.

The DHT holds node records and nothing else. A record lies under a key of its run, the hour in which it was made
and the first digit of its peer id, with the peer id as subkey: small dictionaries, whose keys nobody can settle
around for long. That a peer is not in the DHT says nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.logging import use_hivemind_log_handler
from hivemind.utils.multiaddr import Multiaddr

from ftis_node.admission import why_not_a_member
from ftis_node.clock import now_ms
from ftis_node.errors import DiscoveryError, WireError
from ftis_node.manifest import Run
from ftis_node.swarm.records import NodeRecord, open_record, read_record
from ftis_node.types import PeerId, RunId
from ftis_node.wire.limits import MAX_RECORD_BYTES

log = logging.getLogger(__name__)

PERIOD_MS = 3_600_000
SHARDS = 16
SUBKEYS_PER_KEY = 1_000
"""At most 1 MiB under one key: a message of the DHT may have 4."""

LATEST_EXPIRY_MS = 2 * 24 * 3_600_000
ENCODING_BYTES = 16
SHARDS_PER_SEARCH = 4


def key_of(run_id: RunId, made_ms: int, shard: int) -> str:
    return f"ftis-node/1/{run_id.hex()}/{made_ms // PERIOD_MS}/{shard:x}"


def shard_of(peer: PeerId) -> int:
    return peer[0] % SHARDS


class RecordGuard(RecordValidatorBase):  # type: ignore[misc]  # hivemind is not typed
    """Takes node records of one run under the key that follows from them, signed by their node, and nothing else.

    It is asked at every store and for every part of what others return, where one invalid part voids the whole
    answer: so it must not depend on the clock, but for a loose cap on the expiry.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def validate(self, record: DHTRecord) -> bool:
        if len(record.value) > MAX_RECORD_BYTES + ENCODING_BYTES:
            return False
        try:
            sealed, subkey = MSGPackSerializer.loads(record.value), MSGPackSerializer.loads(record.subkey)
            if not isinstance(sealed, bytes):
                return False
            node = read_record(sealed)
        except (WireError, ValueError, TypeError, KeyError, AttributeError):
            return False
        made_ms = node.created_at_ms
        key = DHTID.generate(source=key_of(self._run.run_id, made_ms, shard_of(node.peer_id))).to_bytes()
        return bool(
            subkey == node.peer_id.hex()
            and node.run_id == self._run.run_id
            and record.key == key
            and abs(record.expiration_time * 1000 - node.expires_at_ms) < 1
            and node.expires_at_ms < now_ms() + LATEST_EXPIRY_MS
            and why_not_a_member(self._run, node.peer_id, node.membership, now_ms=made_ms) is None
        )


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """hivemind's storage, safe from an older record that comes again, and with an end to each dictionary.

    The original lets a replayed older record take the place of the newer one in its table of expiries, so that
    the newer one is dropped too early.
    """

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        held = self.get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            item = held.value.get(subkey)
            if item is None and len(held.value) >= SUBKEYS_PER_KEY:
                return False
            if item is not None and item.expiration_time >= expiration_time:
                return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))


@contextlib.contextmanager
def _children_out_of_reach_of_the_terminal() -> Iterator[None]:
    """Ctrl-C goes to the whole process group. hivemind's daemon must outlive it, so that this node can say goodbye and
    end it in order; but hivemind doesn't let us say how its process is started. It ends with this process anyway.
    """
    loop = asyncio.get_running_loop()
    loop.subprocess_exec = functools.partial(loop.subprocess_exec, process_group=0)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del loop.subprocess_exec  # the class's own again


class Discovery:
    """This node's place in the DHT."""

    def __init__(self, node: DHTNode, run: Run) -> None:
        self._node = node
        self._run = run
        self._rng = random.Random()

    @classmethod
    async def start(cls, run: Run, *, listen: str) -> Discovery:
        """Start a DHT node in this event loop. ``listen`` is a multiaddress. Raises DiscoveryError."""
        use_hivemind_log_handler("nowhere")
        logging.getLogger("hivemind").setLevel(logging.ERROR)
        try:
            with _children_out_of_reach_of_the_terminal():
                node = await DHTNode.create(
                    host_maddrs=[listen], initial_peers=[], record_validator=RecordGuard(run), use_relay=False,
                    auto_nat=False, nat_port_map=False, ensure_bootstrap_success=False,
                )  # fmt: skip
        except (RuntimeError, OSError, ValueError) as error:
            raise DiscoveryError(f"the DHT node can't start: {str(error).splitlines()[0]}") from error
        node.protocol.storage = BoundedStorage()
        node.protocol.cache = BoundedStorage(maxsize=10_000)
        return cls(node, run)

    async def addresses(self) -> list[str]:
        """Multiaddresses at which others may reach this DHT node."""
        return [str(address) for address in await self._node.p2p.get_visible_maddrs()]

    async def join(self, addresses: Sequence[str]) -> None:
        """Make the acquaintance of another node of the DHT. Raises DiscoveryError with the reason."""
        try:
            targets = [Multiaddr(address) for address in addresses]
            peer = PeerID.from_base58(targets[0]["p2p"])
            plain = [target.decapsulate(Multiaddr(f"/p2p/{peer.to_base58()}")) for target in targets]
            await self._node.p2p._client.connect(peer, plain)
            answer = await self._node.protocol.call_ping(peer, validate=True, strict=True)
        except Exception as error:
            # hivemind, its p2p client and multiaddr have no common base for their errors, and the addresses come from a
            # peer: none of them may end the loop that calls this, and each is said with its reason.
            raise DiscoveryError(_explain(error)) from error
        if answer is None:
            raise DiscoveryError("the DHT node of the peer does not answer")

    async def publish(self, sealed: bytes) -> bool:
        """Put the own record where others look for it; whether any node took it."""
        record = read_record(sealed)
        return bool(
            await self._node.store(
                key_of(record.run_id, record.created_at_ms, shard_of(record.peer_id)), sealed,
                expiration_time=record.expires_at_ms / 1000, subkey=record.peer_id.hex(),
            )
        )  # fmt: skip

    async def find(self, *, everywhere: bool = False) -> list[NodeRecord]:
        """Records of some shards, or of all; those that have expired are left out."""
        now = now_ms()
        shards = range(SHARDS) if everywhere else self._rng.sample(range(SHARDS), SHARDS_PER_SEARCH)
        keys = [key_of(self._run.run_id, made, shard) for shard in shards for made in (now, now - PERIOD_MS)]
        found = await self._node.get_many(keys)
        records = []
        for result in found.values():
            if result is None or not isinstance(result.value, dict):
                continue
            for item in result.value.values():
                try:
                    records.append(open_record(item.value, now_ms=now))
                except WireError as error:
                    log.debug("a record from the DHT: %s", error)
        return records

    @property
    def nodes_known(self) -> int:
        """Other nodes in the routing table."""
        return len(self._node.protocol.routing_table.uid_to_peer_id)

    async def stop(self) -> None:
        await self._node.shutdown()


def _explain(error: Exception) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "local time must be within" in text:
        times = re.findall(r"(?:local|peer): ([0-9.]+)", text)
        seconds = f"{abs(float(times[0]) - float(times[1])):.0f} s apart, " if len(times) == 2 else ""
        return f"the DHT refuses this node, because its clock and the peer's differ ({seconds}3 s are allowed)"
    return f"the DHT node of the peer can't be reached: {text}"
