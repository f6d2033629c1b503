"""What goes out on a neighbour's stream: control frames first, then announcements that are due, then a chunk at a time.

All within the budgets of that neighbour and of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ftis_node.swarm import frames
from ftis_node.swarm.budget import Budget
from ftis_node.swarm.exchange_port import Exchange
from ftis_node.swarm.session import Session
from ftis_node.wire.v1 import swarm_pb2 as pb

WRITE_SECONDS = 30.0


@dataclass
class Counters:
    """What has passed since the start, over all sessions. ``payloads_in`` counts whole batches, repeated ones too."""

    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    payloads_in: int = 0


class Sender:
    """Of all sessions of a node; ``budget`` is what they have together."""

    def __init__(self, exchange: Exchange, budget: Budget, counters: Counters) -> None:
        self._exchange = exchange
        self._budget = budget
        self._counters = counters

    async def run(self, session: Session) -> None:
        """Until it is cancelled, or the stream breaks."""
        chunks: Iterator[pb.Frame] = iter(())
        loop = asyncio.get_running_loop()
        while True:
            if session.control:
                await self._send(session, session.control.popleft())
            elif session.announcements and loop.time() >= session.announce_at:
                batches = list(session.announcements.items())
                session.announcements.clear()
                for frame in frames.have_frames(batches):
                    await self._send(session, frame)
            elif (chunk := next(chunks, None)) is not None:
                await self._send(session, chunk)
                now = time.monotonic()
                size = chunk.ByteSize()
                await asyncio.sleep(max(session.budget_out.spend(size, now), self._budget.spend(size, now)))
            elif session.uploads:
                name = session.uploads.popleft()
                chunks = iter(frames.chunk_frames(name, await self._exchange.load(name)))
            else:
                session.wake.clear()
                due = session.announce_at - loop.time() if session.announcements else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await session.wake.wait()

    async def _send(self, session: Session, frame: pb.Frame) -> None:
        async with asyncio.timeout(WRITE_SECONDS):
            await session.stream.write(frame)
        size = frame.ByteSize()
        session.bytes_out += size
        self._counters.bytes_out += size
        self._counters.messages_out += 1
