"""Addresses as people write them: ``[peer-id@]host:port``, IPv6 hosts in brackets."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from ftis_node.errors import ConfigError
from ftis_node.types import PeerId

_FORM = re.compile(
    r"^(?:(?P<peer>[0-9a-fA-F]{64})@)?(?:\[(?P<v6>[0-9a-fA-F:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>\d{1,5})$"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a peer can be dialled, and who must answer there if that is known."""

    host: str
    port: int
    peer_id: PeerId | None = None

    @property
    def target(self) -> str:
        """``host:port`` as gRPC takes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.target if self.peer_id is None else f"{self.peer_id.hex()}@{self.target}"


def parse_address(text: str, *, source: str, lowest_port: int = 1) -> Address:
    """Raises ConfigError naming the option (``source``), the value and the form that is allowed."""
    match = _FORM.match(text.strip())
    if match is None and lowest_port == 0:  # where this machine listens
        raise ConfigError(f"{source}: {text!r} is not an address; write host:port, for example 0.0.0.0:47100")
    if match is None:
        raise ConfigError(
            f"{source}: {text!r} is not an address; write host:port or peer-id@host:port"
            " (peer-id: 64 hex digits; an IPv6 host in brackets)"
        )
    port = int(match["port"])
    if not lowest_port <= port <= 65_535:
        raise ConfigError(f"{source}: {text!r}: the port must be from {lowest_port} to 65535")
    peer = match["peer"]
    return Address(match["v6"] or match["host"], port, None if peer is None else PeerId(bytes.fromhex(peer)))


def observed_host(grpc_peer: str) -> str:
    """The host part of what gRPC reports: ``ipv4:10.1.2.3:5555``, ``ipv6:%5B::1%5D:5555``; empty if there is none."""
    return grpc_peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")


def address_range(grpc_peer: str) -> str:
    """The /24 (IPv4) or /48 (IPv6) that a connection comes from; caps count per range.

    Loopback addresses are told apart by nothing, so they count as one range.
    """
    host = observed_host(grpc_peer)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host or "unknown"
    mapped = getattr(address, "ipv4_mapped", None) or address
    prefix = 24 if mapped.version == 4 else 48
    return str(ipaddress.ip_network((mapped, prefix), strict=False))
