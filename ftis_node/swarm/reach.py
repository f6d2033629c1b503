"""Dialling a caller back, so that it learns whether others can reach it.

What a stranger can make this node do is narrow: one TLS handshake with the host that the stranger's own connection
comes from, at most 5 s long, one at a time, a few per minute and address range. The answer is yes only where the
certificate that the caller named answers, and everything else looks alike, so that nobody can look into a host that
he merely shares an address with.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from ftis_node.errors import WireError
from ftis_node.swarm.addresses import Address, address_range, observed_host
from ftis_node.swarm.tls import certificate_sha256, fetch_certificate

DIAL_SECONDS = 5.0
PROBES, WINDOW_SECONDS = 4, 60.0
REMEMBERED_RANGES = 1_000
SHA256_BYTES = 32


class ProbeRefused(WireError):
    """This caller is not dialled now, or not at all; the reason is meant for the caller."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What came of one call. ``host`` is where it came from; ``reason`` says why it was not reached."""

    reached: bool
    host: str
    reason: str = ""


class ReachProbe:
    """The answering side; one per node."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy = False
        self._lately: OrderedDict[str, deque[float]] = OrderedDict()

    async def answer(self, grpc_peer: str, port: int, expected_sha256: bytes) -> Probe:
        """Dial the host behind ``grpc_peer`` on ``port``. Raises ProbeRefused when that is not done."""
        host = _host_of(grpc_peer)
        if not 1 <= port <= 65_535 or len(expected_sha256) != SHA256_BYTES:
            raise ProbeRefused("asks for a port or a certificate hash that can't be")
        if self._busy:
            raise ProbeRefused("is dialling somebody else back right now; ask again in some seconds")
        self._count(address_range(grpc_peer))
        self._busy = True
        try:
            return await self._dial(Address(host, port), expected_sha256)
        finally:
            self._busy = False

    def _count(self, caller: str) -> None:
        now = self._clock()
        asked = self._lately.setdefault(caller, deque(maxlen=PROBES))
        self._lately.move_to_end(caller)
        if len(self._lately) > REMEMBERED_RANGES:
            self._lately.popitem(last=False)
        if len(asked) == PROBES and (wait := asked[0] + WINDOW_SECONDS - now) > 0:
            raise ProbeRefused(
                f"dials a range of addresses back {PROBES} times in {WINDOW_SECONDS:.0f} s at most; ask again in"
                f" {math.ceil(wait)} s"
            )
        asked.append(now)

    async def _dial(self, address: Address, expected_sha256: bytes) -> Probe:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                seen = certificate_sha256(await fetch_certificate(address, DIAL_SECONDS))
        except (TimeoutError, WireError, ValueError):
            seen = b""
        if hmac.compare_digest(seen, expected_sha256):
            return Probe(True, address.host)
        return Probe(False, address.host, "nobody with this certificate answers there")


def _host_of(grpc_peer: str) -> str:
    """The caller's address, as a number: no name is ever looked up. Raises ProbeRefused for a local socket."""
    try:
        address = ipaddress.ip_address(observed_host(grpc_peer))
    except ValueError as error:
        raise ProbeRefused("sees no address that the call comes from") from error
    return str(getattr(address, "ipv4_mapped", None) or address)
