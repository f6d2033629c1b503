"""Announce, then pull: how batches spread from neighbour to neighbour.

One bidirectional stream per neighbour carries everything. A session announces what the node holds,
asks for what it lacks, newest first and within a budget, and takes chunks only of what it asked
for. Every table here is bounded, and every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

import grpc

from ftis_node.config import NetworkConfig
from ftis_node.errors import WireError
from ftis_node.log import about
from ftis_node.swarm import frames
from ftis_node.swarm.budget import Budget
from ftis_node.swarm.exchange_port import Exchange
from ftis_node.swarm.peers import Inbound, whom_to_replace
from ftis_node.swarm.sending import Counters, Sender
from ftis_node.swarm.session import BURST_SECONDS, Neighbour, Session
from ftis_node.types import BatchName, PeerId, short_id
from ftis_node.wire.limits import CHUNK_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.2
HINTS_SECONDS = 30.0
WANTS_PER_NEIGHBOUR = 32
OFFERS_PER_NEIGHBOUR = 20_000
UPLOADS_PER_NEIGHBOUR = 4_096
HELD_LATELY = 20_000
LONGEST_THROTTLE_SECONDS = 10.0
ALREADY_CONNECTED = "already connected the other way"


class Gossip:
    """All sessions of a node, and which batch is asked of whom."""

    def __init__(self, exchange: Exchange, own_id: PeerId, config: NetworkConfig) -> None:
        self._exchange = exchange
        self._own_id = own_id
        self.config = config
        self.sessions: dict[PeerId, Session] = {}
        self.stopping = asyncio.Event()  # nobody is dialled any more
        self.counters = Counters()
        self._budget_in = Budget(config.bytes_per_second, burst_seconds=BURST_SECONDS)
        self._sender = Sender(exchange, Budget(config.bytes_per_second, burst_seconds=BURST_SECONDS), self.counters)
        self._asked_of: dict[BatchName, Session] = {}
        self._being_checked: set[BatchName] = set()
        # Made here or come lately: known without asking the exchange.
        self._held: OrderedDict[BatchName, None] = OrderedDict()

    def announce(self, name: BatchName, size: int) -> None:
        """Tell every neighbour that doesn't hold the batch, as far as is known."""
        self._hold(name)
        for session in self.sessions.values():
            if name not in session.offers:
                self._announce(session, name, size)

    def _hold(self, name: BatchName) -> None:
        self._held[name] = None
        if len(self._held) > HELD_LATELY:
            self._held.popitem(last=False)

    def _announce(self, session: Session, name: BatchName, size: int) -> None:
        session.announce(name, size, asyncio.get_running_loop().time() + COALESCE_SECONDS)

    def admit(self, session: Session) -> str | None:
        """Take a session in, or say why not.

        Of two streams after a simultaneous dial the one that the smaller peer id opened stays, so
        that both ends decide alike. A second stream in the same direction replaces the first, which
        is dead without knowing it yet.
        """
        peer = session.neighbour.peer_id
        old = self.sessions.get(peer)
        if old is not None and old.neighbour.direction != session.neighbour.direction:
            keep_direction = "out" if self._own_id < peer else "in"
            if session.neighbour.direction != keep_direction:
                return ALREADY_CONNECTED
        if old is not None:
            old.close("replaced by a newer connection")
        elif session.neighbour.direction == "in" and not self._make_room(session.neighbour):
            return "this node has no room for another neighbour"
        self.sessions[peer] = session
        return None

    def _make_room(self, newcomer: Neighbour) -> bool:
        """Whether one more may connect, if need be in the place of another."""
        now = time.monotonic()
        inbound = [
            Inbound(peer, s.neighbour.address_range, now - s.began_at, now - s.heard_at)
            for peer, s in self.sessions.items()
            if s.neighbour.direction == "in"
        ]
        if len(inbound) < self.config.connections:
            return True
        goes = whom_to_replace(inbound, newcomer.address_range, silent_after=1.5 * self.config.ping_seconds)
        if goes is not None:
            self.sessions.pop(goes).close("another neighbour takes its place")
        return goes is not None

    async def run(self, session: Session) -> str:
        """Serve an admitted session until it ends; returns why it ended."""
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (
                self._read(session),
                self._sender.run(session),
                self._tick(session),
                session.closed.wait(),
            )
        ]
        try:
            for name, size in reversed(await self._exchange.live()):  # the newest last, as later ones follow
                if name not in session.announcements:
                    self._announce(session, name, size)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    session.close(_explain(error))
                    if isinstance(error, WireError):
                        await self._exchange.fault(session.neighbour, "malformed", str(error))
                    elif not isinstance(error, (TimeoutError, grpc.RpcError, asyncio.InvalidStateError, EOFError)):
                        log.error(
                            "session with %s failed",
                            short_id(session.neighbour.peer_id),
                            exc_info=error,
                            extra=about(peer=session.neighbour.peer_id),
                        )
        finally:
            session.close("ended")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._forget(session)
        return session.close_reason

    def _forget(self, session: Session) -> None:
        if self.sessions.get(session.neighbour.peer_id) is session:
            del self.sessions[session.neighbour.peer_id]
        for name in session.asked:
            self._asked_of.pop(name, None)
        session.asked.clear()
        session.incoming.clear()
        for other in self.sessions.values():
            self._ask(other)

    # --- reading ----------------------------------------------------------------------------

    async def _read(self, session: Session) -> None:
        while True:
            async with asyncio.timeout(self.config.silence_seconds):
                frame = await session.stream.read()
            if frame is frames.EOF:
                raise EOFError
            session.heard_at = time.monotonic()
            await self._throttle(session, frame)
            match frame.WhichOneof("kind"):
                case "have":
                    await self._on_have(session, frame.have)
                case "want":
                    self._on_want(session, frame.want)
                case "chunk":
                    await self._on_chunk(session, frame.chunk)
                case "ping":
                    session.send(pb.Frame(pong=pb.Pong(nonce=frame.ping.nonce)))
                case "pong":
                    self._on_pong(session, frame.pong)
                case "peers":
                    await self._on_peers(session, frame.peers)
                case "twin":
                    await self._exchange.twin(bytes(frame.twin.record))
                case "goodbye":
                    session.close(f"the peer left: {frame.goodbye.reason[:80]}")
                    return
                case kind:
                    raise WireError(f"a frame of kind {kind!r} has no place here")

    async def _throttle(self, session: Session, frame: pb.Frame) -> None:
        """Leave the stream unread for as long as a neighbour is over its budget; gRPC then holds it back.

        Chunks that were asked for count by their bytes alone.
        """
        size = frame.ByteSize()
        session.bytes_in += size
        self.counters.bytes_in += size
        self.counters.messages_in += 1
        wanted = frame.WhichOneof("kind") == "chunk" and BatchName(frame.chunk.name) in session.asked
        now = time.monotonic()
        wait = max(
            session.budget_in.spend(size, now),
            self._budget_in.spend(size, now),
            0.0 if wanted else session.messages.spend(1, now),
        )
        if wait > 0:
            wait = min(wait, LONGEST_THROTTLE_SECONDS)
            session.throttled_seconds += wait
            await asyncio.sleep(wait)

    def _on_pong(self, session: Session, pong: pb.Pong) -> None:
        if session.ping is not None and session.ping[0] == pong.nonce:
            session.round_trip_ms = (asyncio.get_running_loop().time() - session.ping[1]) * 1000
            session.ping = None

    async def _on_peers(self, session: Session, peers: pb.Peers) -> None:
        """Hints, at the rate at which an honest neighbour sends them; more are read and dropped."""
        hints = frames.read_peers(peers)
        now = asyncio.get_running_loop().time()
        if now - session.hints_at >= HINTS_SECONDS / 2:
            session.hints_at = now
            await self._exchange.learn(hints)

    async def _on_have(self, session: Session, have: pb.Have) -> None:
        offered = frames.read_have(have)
        wanted = {name for name, _ in offered if name in self._asked_of or name in self._being_checked}
        new = [name for name, _ in offered if name not in wanted and name not in self._held]
        if new:
            wanted |= await self._exchange.unknown(new)
        for name, size in offered:
            session.announcements.pop(name, None)  # it needn't be told
            if name in wanted and name not in self._held:
                session.offers[name] = size
        while len(session.offers) > OFFERS_PER_NEIGHBOUR:
            session.offers.popitem(last=False)
        self._ask(session)

    def _on_want(self, session: Session, want: pb.Want) -> None:
        names = frames.read_names(want.names)
        if len(session.uploads) + len(names) > UPLOADS_PER_NEIGHBOUR:
            raise WireError(f"more than {UPLOADS_PER_NEIGHBOUR} batches are asked for at once")
        session.uploads.extend(names)
        session.wake.set()

    async def _on_chunk(self, session: Session, chunk: pb.Chunk) -> None:
        name = BatchName(chunk.name)
        if name not in session.asked:
            return  # asked for, given up at its deadline, and late: costs nothing but the bytes
        size, _ = session.asked[name]
        data = session.incoming.setdefault(name, bytearray())
        if chunk.offset != len(data) or len(chunk.data) > CHUNK_BYTES or len(data) + len(chunk.data) > size:
            raise WireError("a chunk doesn't continue the batch that was announced")
        data += chunk.data
        if not chunk.last:
            return
        self._drop(session, name)
        if len(data) == 0:
            session.offers.pop(name, None)
        elif len(data) != size:
            raise WireError(f"a batch of {len(data)} bytes came instead of the announced {size}")
        else:
            session.offers.pop(name, None)
            self.counters.payloads_in += 1
            await self._deliver(name, bytes(data), session)
        self._ask(session)

    async def _deliver(self, name: BatchName, data: bytes, session: Session) -> None:
        """Others may offer the batch while it is checked: they are asked if this turns out to be something else."""
        self._being_checked.add(name)
        try:
            kept = await self._exchange.deliver(name, data, session.neighbour)
            known = kept or not await self._exchange.unknown([name])
        finally:
            self._being_checked.discard(name)
        if known:
            self._hold(name)
            self._spread(name, len(data), session, kept=kept)
        else:
            # Other bytes than those of that name: whoever sent them must not keep the real ones away.
            for other in self.sessions.values():
                self._ask(other)

    def _spread(self, name: BatchName, size: int, source: Session, *, kept: bool) -> None:
        """Nobody needs to be asked any more; who doesn't hold it is told, if it may be passed on."""
        for other in self.sessions.values():
            holds = other.offers.pop(name, None) is not None
            if kept and not holds and other is not source:
                self._announce(other, name, size)

    def _drop(self, session: Session, name: BatchName) -> None:
        session.asked.pop(name, None)
        session.incoming.pop(name, None)
        self._asked_of.pop(name, None)

    def _ask(self, session: Session) -> None:
        """Ask for the newest offers that are asked of nobody, as far as the budget goes; many at a time."""
        room = WANTS_PER_NEIGHBOUR - len(session.asked)
        if room < WANTS_PER_NEIGHBOUR // 2:
            return
        deadline = asyncio.get_running_loop().time() + self.config.want_seconds
        names = []
        for name in reversed(session.offers):
            if not (name in self._asked_of or name in self._being_checked or name in self._held):
                names.append(name)
                if len(names) == room:
                    break
        for name in names:
            session.asked[name] = (session.offers[name], deadline)
            self._asked_of[name] = session
        if names:
            session.send(frames.want_frame(names))

    async def _tick(self, session: Session) -> None:
        """Keep the stream alive, and ask another neighbour for what this one doesn't deliver."""
        loop = asyncio.get_running_loop()
        hinted_at = -HINTS_SECONDS
        while True:
            now = loop.time()
            nonce = int(now * 1000)
            session.ping = (nonce, now)
            session.send(pb.Frame(ping=pb.Ping(nonce=nonce)))
            if now - hinted_at >= HINTS_SECONDS:
                hinted_at = now
                if addresses := await self._exchange.addresses():
                    session.send(frames.peers_frame(addresses))
            await asyncio.sleep(self.config.ping_seconds)
            late = [name for name, (_, deadline) in session.asked.items() if deadline < loop.time()]
            for name in late:
                self._drop(session, name)
                session.offers.pop(name, None)
            if late:
                log.info(
                    "%s did not deliver %d batches in time",
                    short_id(session.neighbour.peer_id),
                    len(late),
                    extra=about(peer=session.neighbour.peer_id),
                )
                for other in self.sessions.values():
                    self._ask(other)


def _explain(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no word from it in time"
    if isinstance(error, EOFError):
        return "the peer closed the connection"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"connection lost: {error.code().name.lower()}"
    return str(error) or type(error).__name__
