"""What the network half does with batches: verify and keep peers' ones, sign and publish its own."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace

from ftis_node.clock import now_ms
from ftis_node.config import CeilingsConfig
from ftis_node.database_thread import DatabaseThread
from ftis_node.errors import StoreError, WireError
from ftis_node.identity import Identity
from ftis_node.inbox.verify import Accepted, Blame, Known, Opened, Rejected, RejectReason, open_batch, verify
from ftis_node.log import about
from ftis_node.manifest import Run
from ftis_node.store.network import OutboxEntry, ReceivedBatch
from ftis_node.store.peers import StoredScore
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.peers import BAN_MS, Score, charged, must_be_banned, rewarded
from ftis_node.swarm.records import open_record
from ftis_node.swarm.session import Neighbour
from ftis_node.types import BatchHeader, BatchName, LocalProfile, PeerId, short_id
from ftis_node.wire.codec import encode_batch, sign_batch

log = logging.getLogger(__name__)

EQUIVOCATION_BAN_MS = 30 * 86_400_000
HINTS = 32
LIVE_BATCHES = 20_000
RECENT_BYTES = 4 * 1024 * 1024
SIGN_AT_ONCE = 64
VERDICTS_AT_ONCE = 1_000


class BatchExchange:
    """The node's answers to gossip; see ``swarm.gossip.Exchange``."""

    def __init__(
        self, database: DatabaseThread, run: Run, identity: Identity, ceilings: CeilingsConfig, membership: bytes,
        epoch: int, instance: bytes,
    ) -> None:  # fmt: skip
        self._membership = membership
        self._epoch = epoch
        self._instance = instance
        self._database = database
        self._store = database.store
        self._run = run
        self._identity = identity
        self._max_bytes = ceilings.store_megabytes * 1024 * 1024
        self._full = False
        self._recent: OrderedDict[BatchName, bytes] = OrderedDict()
        self._recent_bytes = 0
        self.profile: LocalProfile | None = None  # of the learner's tokenizer, once it is known
        self.on_ban: Callable[[PeerId, str], None] = _nobody_to_tell
        self.on_twin: Callable[[], None] = _nothing_to_do

    def _lifetime_ms(self) -> int:
        limits = self._run.manifest.limits
        return int((limits.max_age_seconds + limits.clock_skew_seconds) * 1000)

    def oldest_live_ms(self) -> int:
        """Batches created before this may no longer be accepted, trained or passed on."""
        return now_ms() - self._lifetime_ms()

    async def live(self) -> list[tuple[BatchName, int]]:
        return await self._database(self._store.live, self.oldest_live_ms(), LIVE_BATCHES)

    async def unknown(self, names: list[BatchName]) -> set[BatchName]:
        return await self._database(self._store.unknown, names)

    async def load(self, name: BatchName) -> bytes | None:
        if (data := self._recent.get(name)) is not None:
            return data
        return await self._database(self._store.load, name)

    def _keep_at_hand(self, name: BatchName, data: bytes) -> None:
        """What has just come is asked for at once by others."""
        self._recent[name] = data
        self._recent_bytes += len(data)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    async def fault(self, neighbour: Neighbour, reason: str, detail: str) -> None:
        log.warning(
            "%s broke the protocol (%s): %s",
            short_id(neighbour.peer_id),
            reason,
            detail,
            extra=about(peer=neighbour.peer_id),
        )
        await self._database(self._store.count_rejection, neighbour.peer_id, reason, Blame.NEIGHBOUR.value, detail)
        await self._charge(neighbour.peer_id, reason)

    async def addresses(self) -> list[tuple[PeerId, str]]:
        return await self._database(self._store.peers.reachable_addresses, HINTS)

    async def learn(self, addresses: list[Address]) -> None:
        hints = [(a.peer_id, a.target) for a in addresses if a.peer_id not in (None, self._identity.peer_id)]
        await self._database(self._store.peers.learn_addresses, [(p, target) for p, target in hints if p is not None])

    async def twin(self, sealed: bytes) -> None:
        """A record of this node's own making, by a process that still lived after this one began, is proof."""
        try:
            record = open_record(sealed, now_ms=now_ms())
        except WireError as error:
            log.debug("what should show a twin does not: %s", error)
            return
        others = record.peer_id == self._identity.peer_id and record.instance != self._instance
        if others and record.created_at_ms > self._epoch:
            self.on_twin()

    async def _charge(self, peer: PeerId, reason: str) -> None:
        """Lower a peer's score, and ban it when it is low enough."""
        score = await self._database(self._rescore, peer, lambda score, now: charged(score, reason, now))
        if must_be_banned(score, now_ms()):
            await self._ban(peer, f"score {score.value:.0f}, last for {reason}", BAN_MS, None)

    async def _ban(self, peer: PeerId, reason: str, duration_ms: int, proof: bytes | None) -> None:
        log.error(
            "%s is banned for %.0f minutes: %s", short_id(peer), duration_ms / 60_000, reason, extra=about(peer=peer)
        )
        until = now_ms() + duration_ms
        await self._database(self._store.peers.ban, peer, until_ms=until, reason=reason, proof=proof)
        self.on_ban(peer, reason)

    def _rescore(self, peer: PeerId, change: Callable[[Score, int], Score]) -> Score:
        """Runs on the database thread, so that no other change comes in between."""
        stored = self._store.peers.score(peer)
        score = change(Score(stored.value, stored.at_ms), now_ms())
        self._store.peers.put_score(peer, StoredScore(score.value, score.at_ms))
        return score

    async def deliver(self, name: BatchName, data: bytes, neighbour: Neighbour) -> bool:
        """Verify a batch and keep it. Nothing that a peer sends can raise out of here."""
        result = await self._database(self._judge_and_keep, name, data, neighbour)
        if isinstance(result, Accepted):
            self._keep_at_hand(name, data)
            return True
        if result.reason is RejectReason.TWIN:
            self.on_twin()
        elif result.blame is not Blame.NOBODY:
            await self._blame(result, neighbour)
        return False

    def _judge_and_keep(self, name: BatchName, data: bytes, neighbour: Neighbour) -> Accepted | Rejected:
        """Runs on the database thread: one hand-over per batch, and nothing changes between look and leap."""
        opened = open_batch(data)
        if isinstance(opened, Rejected):
            return opened
        if opened.name != name:
            return Rejected(RejectReason.MALFORMED, "another batch than the announced one came", Blame.NEIGHBOUR)
        header = opened.header
        keep_until = header.created_at_ms + self._lifetime_ms()
        if header.author == self._identity.peer_id:
            # Not in the store: lost with an older one, or made by somebody else since this node started.
            reason = RejectReason.TWIN if header.created_at_ms > self._epoch else RejectReason.REPLAY
            own = Rejected(reason, "it has this node's own signature", Blame.NOBODY)
            self._store.remember(_as_received(opened, own, self._run, data), keep_until)
            return own
        sighting = self._store.sighting(
            name, header.author, header.epoch, header.sequence, self._run.window(header.created_at_ms)
        )
        known = Known(
            name_seen=sighting.name_seen,
            other_header=sighting.other_header,
            other_signature=sighting.other_signature,
            used_slots=sighting.used_slots,
            author_banned=sighting.author_banned,
        )
        if _epoch_had_ended(header, sighting.newest_epoch):
            self._store.peers.twin(header.author)
        result = verify(opened, run=self._run, known=known, now_ms=now_ms(), profile=self.profile)
        batch = _as_received(opened, result, self._run, data)
        if isinstance(result, Accepted):
            return self._keep(batch, neighbour, keep_until) or result
        if result.reason is not RejectReason.REPLAY:
            self._store.remember(batch, keep_until)
            if result.blame is Blame.NOBODY:
                self._store.count_rejection(header.author, result.reason.value, result.blame.value, result.detail)
            else:
                result = replace(result, author=header.author)
        return result

    def _keep(self, batch: ReceivedBatch, neighbour: Neighbour, keep_until_ms: int) -> Rejected | None:
        """On the database thread. A full store refuses, and says so once and not once per batch."""
        try:
            self._store.accept(
                batch, delivered_by=neighbour.peer_id, address_range=neighbour.address_range,
                keep_until_ms=keep_until_ms, max_bytes=self._max_bytes,
            )  # fmt: skip
        except StoreError as error:
            if not self._full:
                log.error("received batches are dropped: %s (raise ceilings.store_megabytes)", error)
            self._full = True
            return Rejected(RejectReason.NO_ROOM, str(error), Blame.NOBODY)
        self._full = False
        return None

    async def _blame(self, rejected: Rejected, neighbour: Neighbour) -> None:
        author = rejected.author
        peer = neighbour.peer_id if rejected.blame is Blame.NEIGHBOUR or author is None else author
        log.warning(
            "rejected a batch of %s: %s: %s",
            short_id(peer),
            rejected.reason.value,
            rejected.detail,
            extra=about(peer=peer),
        )
        await self._database(
            self._store.count_rejection, peer, rejected.reason.value, rejected.blame.value, rejected.detail
        )
        if rejected.reason is RejectReason.EQUIVOCATION:
            reason = "signed two batches with one sequence number"
            await self._ban(peer, reason, EQUIVOCATION_BAN_MS, rejected.proof)
        else:
            await self._charge(peer, rejected.reason.value)

    async def publish_outbox(self) -> list[tuple[BatchName, int]]:
        """Sign what the learner has put out; returns name and size of each batch, now durable."""
        announced = []
        for entry in await self._database(self._store.unsigned, SIGN_AT_ONCE):
            if entry.created_at_ms < self.oldest_live_ms():
                log.info("own batch from before a long stop is too old to publish")
                await self._database(self._store.skip_outbox, entry)
                continue
            name, data = await self._database(self._store.publish, entry, self._epoch, self._sealer(entry))
            self._keep_at_hand(name, data)
            announced.append((name, len(data)))
        return announced

    def _sealer(self, entry: OutboxEntry) -> Callable[[int], tuple[BatchName, bytes]]:
        def seal(sequence: int) -> tuple[BatchName, bytes]:
            batch = sign_batch(
                entry.payload,
                identity=self._identity,
                run_id=self._run.run_id,
                epoch=self._epoch,
                sequence=sequence,
                created_at_ms=entry.created_at_ms,
                membership=self._membership,
            )
            return BatchName(hashlib.sha256(batch.header).digest()), encode_batch(batch)

        return seal

    async def fold_verdicts(self) -> int:
        """Bring the learner's new verdicts into the peers' counts; returns how many there were."""
        verdicts = await self._database(self._store.fold_verdicts, VERDICTS_AT_ONCE)
        accepted: Counter[PeerId] = Counter()
        for verdict in verdicts:
            if verdict.outcome == "accepted":
                accepted[verdict.author] += 1
            elif verdict.outcome == "rejected":
                log.warning(
                    "rejected a group of %s: %s: %s",
                    short_id(verdict.author),
                    verdict.reason,
                    verdict.detail,
                    extra=about(peer=verdict.author, batch=verdict.name),
                )
                await self._charge(verdict.author, verdict.reason)
        for author, groups in accepted.items():
            await self._database(self._rescore, author, functools.partial(_reward, groups))
        return len(verdicts)

    async def prune(self) -> None:
        await self._database(self._store.prune, self.oldest_live_ms())


def _nobody_to_tell(peer: PeerId, reason: str) -> None:
    del peer, reason


def _nothing_to_do() -> None:
    pass


def _epoch_had_ended(header: BatchHeader, newest_epoch: int) -> bool:
    """Whether a batch was made in an epoch after its author had begun a newer one: two daemons with one identity.

    An epoch is the time (ms) at which it began, so the two signed headers are proof.
    """
    return header.epoch < newest_epoch < header.created_at_ms


def _reward(groups: int, score: Score, now: int) -> Score:
    return rewarded(score, groups, now)


def _as_received(opened: Opened, result: Accepted | Rejected, run: Run, data: bytes) -> ReceivedBatch:
    header = opened.header
    groups = result.payload.groups if isinstance(result, Accepted) else ()
    return ReceivedBatch(
        name=opened.name,
        author=header.author,
        epoch=header.epoch,
        sequence=header.sequence,
        created_at_ms=header.created_at_ms,
        window=run.window(header.created_at_ms),
        slots=tuple(group.slot for group in groups),
        sequences=sum(len(group.completions) for group in groups),
        header=opened.header_bytes,
        signature=opened.signature,
        data=data,
    )
