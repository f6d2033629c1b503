"""The status page's routes. Read-only, and the same for everyone: who may reach it is the address's matter.

/               the page: plain HTML, CSS and JavaScript out of this package, nothing from elsewhere
/status.json    one node's entry of ``ftis-node health --json``
/history.json   the last rounds and the last hour's traffic, as series
/metrics        for Prometheus
/healthz        200 while the node is healthy or degraded, else 503
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import PurePath

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ftis_node.errors import FtisError
from ftis_node.status.judgement import Level
from ftis_node.status.metrics import exposition
from ftis_node.status.readings import Readings

MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

Endpoint = Callable[[Request], Awaitable[Response]]

_HOST = re.compile(r"^(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?$")


def make_app(readings: Readings, bound_host: str) -> ASGIApp:
    """``bound_host`` is where the server listens, as it was configured."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        sampler = asyncio.create_task(readings.sample_forever())
        try:
            yield
        finally:
            sampler.cancel()
            await asyncio.gather(sampler, return_exceptions=True)
            readings.close()

    async def status(request: Request) -> Response:
        del request
        figures = await readings.figures()
        return Response(figures.health.model_dump_json(), media_type="application/json")

    async def history(request: Request) -> Response:
        del request
        return Response((await readings.history()).model_dump_json(), media_type="application/json")

    async def metrics(request: Request) -> Response:
        body, content_type = exposition(await readings.figures(), accept=request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def healthz(request: Request) -> Response:
        del request
        figures = await readings.figures()
        lines = [figures.health.level, *figures.health.reasons]
        return PlainTextResponse(
            "".join(line + "\n" for line in lines), 503 if figures.level is Level.UNREACHABLE else 200
        )

    app = Starlette(
        routes=[
            *_page_routes(),
            Route("/status.json", status),
            Route("/history.json", history),
            Route("/metrics", metrics),
            Route("/healthz", healthz),
        ],
        exception_handlers={FtisError: _reading_failed},
        lifespan=lifespan,
    )
    return guarded(app, bound_host)


def _page_routes() -> list[Route]:
    """The page's files, read once; ``index.html`` is at ``/``."""
    routes = []
    for file in (files("ftis_node.status") / "page").iterdir():
        media_type = MEDIA_TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:  # an editor may keep files of its own there
            path = "/" if file.name == "index.html" else f"/{file.name}"
            routes.append(Route(path, _file_endpoint(file.read_bytes(), media_type)))
    return routes


def _file_endpoint(content: bytes, media_type: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        del request
        return Response(content, media_type=media_type)

    return endpoint


async def _reading_failed(request: Request, error: Exception) -> Response:
    del request
    return PlainTextResponse(f"{error}\n", 503)


def guarded(app: ASGIApp, bound_host: str) -> ASGIApp:
    """Security headers on every answer, and none for a name that a foreign web page made point here."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
                if _has_body(scope):  # nobody reads it: it must not go on coming
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        if scope["type"] == "http" and not host_allowed(Headers(scope=scope).get("host", ""), bound_host):
            refusal = "this page answers to an IP address, to localhost and to the name in status.address\n"
            await PlainTextResponse(refusal, 421)(scope, receive, send_with_headers)
            return
        await app(scope, receive, send_with_headers)

    return answer


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope.get("headers", ()))


def host_allowed(header: str, bound_host: str) -> bool:
    """Whether a request's Host header may be answered.

    A page on the internet can make its own name point to 127.0.0.1 and read what is there with the visitor's browser;
    it can't do so with an IP address or with localhost. A server that is open to the network has nothing to lose by it,
    and is asked by names that it doesn't know (``party-a:9477`` between containers).
    """
    match = _HOST.match(header.strip())
    if match is None:
        return False
    host = (match["v6"] or match["name"]).lower().rstrip(".")
    if host in (bound_host.lower(), "localhost") or host.endswith(".localhost") or _is_address(host):
        return True
    return not is_loopback(bound_host)


def is_loopback(host: str) -> bool:
    """Of a host as it is configured: only this machine can reach it."""
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
