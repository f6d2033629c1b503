"""Serving the status page: a thread with an event loop of its own inside the network process.

So nothing that the page does, not even a fault in it, holds gossip up or ends the node. Off the main thread uvicorn
leaves the signals alone. Every connection is bounded in time and in bytes, and there are few of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ftis_node.errors import ConfigError
from ftis_node.status.app import is_loopback, make_app
from ftis_node.status.figures import LearnerPid
from ftis_node.status.readings import Readings

log = logging.getLogger(__name__)

SPARE_PORTS = 20
CONNECTIONS = 64
REQUESTS = 2 * CONNECTIONS
"""Those of connections that have gone may still be worked at."""
KEEP_ALIVE_SECONDS = 5
CONNECTION_SECONDS = 60.0
LONGEST_HEAD = 16 * 1024
STOP_SECONDS = 1


class _MortalProtocol(H11Protocol):
    """uvicorn bounds how long a connection is idle, but not how slowly a request may come: here it ends in any case.

    Nor does it bound how many there are: it answers 503 beyond ``limit_concurrency`` and keeps them, and every one
    costs the node a file. Here a new one takes the place of the oldest, so that who holds many keeps nobody else out.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        held = [other for other in self.connections if isinstance(other, _MortalProtocol)]
        if len(held) >= CONNECTIONS:
            oldest = min(held, key=lambda other: other._end.when())
            self.connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)
        self._end = self.loop.call_later(CONNECTION_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        super().connection_lost(exc)


class StatusServer:
    """Started once; ``url`` is where the page is."""

    def __init__(self, home: Path, host: str, listener: socket.socket, learner_pid: LearnerPid) -> None:
        self.url = _url(host, listener.getsockname()[1])
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(Readings(home, learner_pid), host),
                loop="asyncio",
                http=_MortalProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=REQUESTS,
                backlog=CONNECTIONS,  # so many are taken in at once, before any of them is looked at
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                h11_max_incomplete_event_size=LONGEST_HEAD,
            )
        )
        self._thread = threading.Thread(target=self._run, name="status-page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._listener])
        finally:
            self._listener.close()
            if not self._server.should_exit:
                log.error("the status page has ended by a fault; the node goes on without it")

    def stop(self) -> None:
        """In order, and within ``STOP_SECONDS`` or without waiting for it any longer. Blocks."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)
        self._server.force_exit = True


def bind(host: str, port: int, *, spare_ports: int = 0) -> socket.socket | None:
    """Listen there, or on one of the ``spare_ports`` behind it; ``None`` if all are taken and there were spare ones.

    Raises ConfigError where a port can't be used and no other may be.
    """
    for candidate in range(port, port + spare_ports + 1):
        try:
            family, _, _, _, address = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=CONNECTIONS)
        except (OSError, UnicodeError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE and spare_ports:
                continue
            raise ConfigError(
                f"status.address = {_joined(host, port)!r}: can't listen there ({_reason(error)}); give another"
                " host:port, or off"
            ) from error
    return None


def _reason(error: OSError | UnicodeError) -> str:
    """Without the address, which the text of some errors says again."""
    if not isinstance(error, OSError):
        return "not a host name"
    if error.errno is None or error.errno not in errno.errorcode:  # the resolver has numbers of its own
        return str(error.strerror)
    return os.strerror(error.errno)


def warn_if_open(host: str, url: str) -> None:
    if not is_loopback(host):
        log.warning("the status page %s can be read by everyone who can reach it", url)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _url(host: str, port: int) -> str:
    return f"http://{_joined(host, port)}/"
