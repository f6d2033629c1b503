"""Asking nodes for their status, one after another through the whole swarm, within bounds of nodes and time.

Nodes name peers with addresses, from own dials, peer exchange and the DHT; whoever answers there must prove the id
that was named. Whatever is answered, however slowly, costs one node's time and no more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from ftis_node.clock import now_ms
from ftis_node.errors import ConfigError, DialError, WireError
from ftis_node.status.kept import small
from ftis_node.status.snapshot import NodeStatus
from ftis_node.status.summary import Answer
from ftis_node.status.swarm_view import Bounds, Failure
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.swarm.dialing import fetch_status
from ftis_node.swarm.frontier import Frontier, Hint, IpAddress, may_follow
from ftis_node.swarm.handshake import Refused
from ftis_node.swarm.tls import silent, unresolved
from ftis_node.types import PeerId

AT_ONCE = 32
NODE_SECONDS = 2.0
NAMED_SECONDS = 5.0
KEPT_PEERS = 50_000
FEWEST_PEERS = 64
NAMES_LOOKED_UP = 32


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """``follow``: whether the peers of those named are asked too."""

    max_nodes: int
    seconds: float
    follow: bool = True


class Walk:
    """One walk. ``own`` is the status of the home's own node, which needn't be asked."""

    def __init__(self, limits: WalkLimits, own: Answer | None = None) -> None:
        self._limits = limits
        self._frontier = Frontier(limits.max_nodes)
        self._peers_per_node = max(FEWEST_PEERS, KEPT_PEERS // limits.max_nodes)
        self._names_left = NAMES_LOOKED_UP
        self._named: set[Address] = set()
        self.answers: list[Answer] = []
        if own is not None:
            self.answers.append(self._taken_in(own, None))

    async def run(self, named: Sequence[Address]) -> Bounds:
        """Ask until nobody is left or a bound is met; what came of it is in ``answers``."""
        self._named = set(named)
        self._frontier.add(named, None)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.seconds
        asking: dict[asyncio.Task[tuple[Answer, IpAddress | None]], Hint] = {}
        told_at: dict[PeerId | None, IpAddress | None] = {None: None}
        in_time = True
        while in_time:
            while len(asking) < AT_ONCE and (hint := self._frontier.next()) is not None:
                asking[asyncio.create_task(self._ask(hint, told_at[hint.teller]))] = hint
            if not asking:
                break
            done, _ = await asyncio.wait(asking, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            in_time = bool(done)
            for task in done:
                hint = asking.pop(task)
                answer, host = task.result()
                self.answers.append(answer if answer.status is None else self._taken_in(answer, hint))
                if answer.status is None:
                    self._frontier.in_vain(hint)
                elif answer.peer_id is not None:
                    told_at[PeerId(bytes.fromhex(answer.peer_id))] = host
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        self.answers += [
            _unanswered(hint.address, True, DialError("silent", f"does not answer within {self._limits.seconds:g} s"))
            for hint in asking.values()
            if hint.address in self._named
        ]
        return self._bounds(in_time=in_time)

    def _bounds(self, *, in_time: bool) -> Bounds:
        not_asked = self._frontier.not_asked
        stopped_by_nodes = self._frontier.full and not_asked > 0
        return Bounds(
            max_nodes=self._limits.max_nodes,
            timeout_seconds=self._limits.seconds,
            node_seconds=NODE_SECONDS,
            peers_per_node=self._peers_per_node,
            asked=self._frontier.asked,
            stopped_by="time" if not in_time else "nodes" if stopped_by_nodes else None,
            not_asked=not_asked,
        )

    def _taken_in(self, answer: Answer, hint: Hint | None) -> Answer:
        """Go on from what a node says; of its status only so much is kept that many nodes fit into memory."""
        status = answer.status
        assert status is not None
        teller = None
        if hint is not None and answer.peer_id is not None:
            teller = PeerId(bytes.fromhex(answer.peer_id))
            self._frontier.answered(hint, teller)
        elif status.peer_id:
            self._frontier.known_already(PeerId(bytes.fromhex(status.peer_id)))
        if not self._limits.follow:
            return answer
        self._frontier.add(_addresses_in(status), teller)
        if hint is None:  # whom the own node was told to dial, though it may never have answered
            self._frontier.add([parse_address(d.address, source="stored peer") for d in status.dials], None)
        kept = small(status, self._peers_per_node) if hint is not None else status
        return Answer(answer.asked, answer.named, answer.peer_id, kept, "", answer.clock_ahead_ms)

    async def _ask(self, hint: Hint, told_at: IpAddress | None) -> tuple[Answer, IpAddress | None]:
        """What came of asking there, and where that was. Never raises."""
        address, named = hint.address, hint.address in self._named
        seconds = NAMED_SECONDS if named else NODE_SECONDS
        host = None
        try:
            async with asyncio.timeout(seconds):
                host = await self._host_of(address.host, named=named)
                if not named and not may_follow(host, told_at):
                    raise WireError("lies where no peer of that node can be")
                data, record = await fetch_status(Address(str(host), address.port, address.peer_id), seconds)
            status = NodeStatus.model_validate_json(data)
            if status.peer_id != record.peer_id.hex() or status.run_id not in (None, record.run_id.hex()):
                raise WireError("answers with the status of another node")
        except WireError as error:
            return _unanswered(address, named, error), host
        except TimeoutError:
            return _unanswered(address, named, silent(seconds)), host
        except ValidationError as error:
            failure = f"answers with a status that can't be read ({error.error_count()} faults)"
            return _unanswered(address, named, WireError(failure)), host
        ahead = record.created_at_ms - now_ms()
        return Answer(str(address), named, status.peer_id, status, "", ahead), host

    async def _host_of(self, host: str, *, named: bool) -> IpAddress:
        """The address of a host, so that what is dialled is what was looked at. Raises WireError."""
        try:
            return ipaddress.ip_address(host)
        except ValueError:
            if not named and self._names_left == 0:
                raise WireError(f"has a name, and {NAMES_LOOKED_UP} were looked up already") from None
        self._names_left -= not named
        return await _look_up(host)


def _unanswered(address: Address, named: bool, error: WireError) -> Answer:
    expected = None if address.peer_id is None else address.peer_id.hex()
    cause: Failure = "another identity" if isinstance(error, Refused) else "unusable answer"
    if isinstance(error, DialError):
        cause = error.cause
    return Answer(str(address), named, expected, None, str(error), cause=cause)


def _addresses_in(status: NodeStatus) -> list[Address]:
    """Where the node says that others can be dialled; what is no address is left out."""
    found = []
    for entry in status.addresses:
        try:
            address = parse_address(f"{entry.peer_id}@{entry.address}", source="a node's status")
        except ConfigError:
            continue
        if address.peer_id is not None:
            found.append(address)
    return found


async def _look_up(name: str) -> IpAddress:
    """The first address of a name. In a thread that nobody waits for: a resolver can take very long to give up."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def settle(address: str | None) -> None:
        if found.done():
            return
        if address is None:
            found.set_exception(unresolved())
        else:
            found.set_result(address)

    def resolve() -> None:
        try:
            address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError):
            address = None
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, address)

    threading.Thread(target=resolve, daemon=True, name="look-up").start()
    return ipaddress.ip_address((await found).partition("%")[0])
