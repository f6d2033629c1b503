"""Whom a walk through the swarm asks next. Pure: addresses in, decisions out.

Addresses come from nodes that may lie. Each node's words wait in a queue of their own, and the queue whose words were
in vain the fewest times is served first: who invents peers comes to lose its turn, and not the others theirs.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from ftis_node.swarm.addresses import Address
from ftis_node.types import PeerId

HINTS_PER_TELLER = 500
TELLERS_PER_HINT = 3
HINTS = 50_000
IN_VAIN_PER_HOST = 32
"""By one node's word. Where that leads to nobody so often, the asker may be aimed at somebody."""
ADDRESSES_PER_PEER = 3

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Hint:
    """An address by the word of ``teller`` (``None``: the command line or the own store)."""

    address: Address
    teller: PeerId | None


class Frontier:
    """Each peer is asked at one address at a time, at three in all; ``most`` peers altogether."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queues: dict[PeerId | None, deque[Hint]] = {}
        self._in_vain: Counter[PeerId | None] = Counter()
        self._in_vain_at: Counter[tuple[PeerId | None, str]] = Counter()
        self._told: Counter[Address] = Counter()
        self._known: set[PeerId | str] = set()
        self._tried: defaultdict[PeerId | str, set[Address]] = defaultdict(set)
        self._asking: set[PeerId | str] = set()
        self._answered: set[PeerId | str] = set()

    @property
    def asked(self) -> int:
        """Peers that were asked, whether or not they answered."""
        return len(self._tried)

    @property
    def not_asked(self) -> int:
        """Peers with an address that nobody has asked."""
        return len(self._known - self._tried.keys() - self._answered)

    @property
    def full(self) -> bool:
        return len(self._tried) >= self._most

    def add(self, addresses: Sequence[Address], teller: PeerId | None) -> None:
        """Take in what a node says; the first addresses first."""
        queue = self._queues.setdefault(teller, deque())
        for address in addresses[:HINTS_PER_TELLER]:
            if len(self._told) < HINTS and self._told[address] < TELLERS_PER_HINT:
                self._told[address] += 1
                self._known.add(_key(address))
                queue.append(Hint(address, teller))

    def next(self) -> Hint | None:
        """Whom to ask now; None if there is nobody, or only peers that are being asked already."""
        for teller in sorted(self._queues, key=lambda teller: self._in_vain[teller]):
            queue = self._queues[teller]
            for _ in range(len(queue)):
                hint = queue.popleft()
                key = _key(hint.address)
                if key in self._asking:
                    queue.append(hint)
                elif self._may_ask(key, hint.address, teller):
                    self._tried[key].add(hint.address)
                    self._asking.add(key)
                    self._in_vain[teller] += 1  # until it answers
                    return hint
        return None

    def _may_ask(self, key: PeerId | str, address: Address, teller: PeerId | None) -> bool:
        if teller is not None and self._in_vain_at[teller, address.host] >= IN_VAIN_PER_HOST:
            return False
        tried = self._tried.get(key, set())
        if key in self._answered or address in tried or len(tried) >= ADDRESSES_PER_PEER:
            return False
        return bool(tried) or not self.full

    def answered(self, hint: Hint, peer: PeerId) -> None:
        """The peer, which has proved to be this one, needn't be asked again."""
        self._asking.discard(_key(hint.address))
        self._in_vain[hint.teller] -= 1
        self._answered |= {_key(hint.address), peer}

    def known_already(self, peer: PeerId) -> None:
        """A peer whose status is known without asking."""
        self._answered.add(peer)

    def in_vain(self, hint: Hint) -> None:
        """Nobody answered there, or somebody else did."""
        self._in_vain_at[hint.teller, hint.address.host] += 1
        self._asking.discard(_key(hint.address))


def _key(address: Address) -> PeerId | str:
    return address.peer_id or address.target


def may_follow(host: IpAddress, told_at: IpAddress | None) -> bool:
    """Whether an address that a node named may be dialled: nobody on the internet may send the asker into its own
    network, or to itself. ``told_at`` is where that node answered; ``None`` is the own store.
    """
    host, told_at = _unmapped(host), told_at and _unmapped(told_at)
    if host.is_unspecified or host.is_multicast or host.is_link_local:
        return False
    if told_at is None or told_at.is_loopback:
        return True
    if host.is_loopback or (host.is_reserved and not host.is_private):
        return False
    return host.is_global or told_at.is_private


def _unmapped(host: IpAddress) -> IpAddress:
    return getattr(host, "ipv4_mapped", None) or host
