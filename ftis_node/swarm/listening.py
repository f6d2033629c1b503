"""Whether this machine can listen at an address, by the system's own word, which gRPC doesn't pass on."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass

from ftis_node.errors import ConfigError
from ftis_node.swarm.addresses import Address


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why not, and what to do about it."""

    found: str
    advice: str


def check_listen(listen: Address) -> None:
    """Raises ConfigError in one line."""
    if (obstacle := obstacle_to(listen)) is not None:
        raise ConfigError(f"{obstacle.found}; {obstacle.advice}")


def obstacle_to(listen: Address) -> Obstacle | None:
    """Takes the port for a moment; nobody can connect meanwhile."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
            trial.listen()
    except (OSError, UnicodeError) as error:
        number = error.errno if isinstance(error, OSError) else None
        advice = {
            errno.EADDRINUSE: f"stop what holds it (see ss -ltnp 'sport = :{listen.port}'), or take another --listen",
            errno.EACCES: "ports below 1024 are for root: take another --listen",
            errno.EADDRNOTAVAIL: "this machine doesn't have that address: --listen 0.0.0.0:PORT takes all it has",
        }.get(number or 0, "take another --listen host:port")
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        return Obstacle(f"network.listen: {listen.target}: can't listen there: {reason or error}", advice)
    return None
