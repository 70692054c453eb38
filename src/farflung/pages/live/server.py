"""The page over HTTP: its files, the API (`api`), and the guard around both.

The page and its API need no certificate, so they listen on this machine alone unless a token guards them. A
page of another site that a viewer's browser has open cannot read them: answers carry no CORS permission, and
on this machine only its own names are answered, not a domain that points at 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from typing import cast
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from farflung.broker.view import FleetView
from farflung.errors import ConnectionFailed
from farflung.pages.live.api import SLOWEST_SECONDS, routes_of
from farflung.pages.live.feed import Feed
from farflung.transport.net.addresses import format_address, is_loopback, parse_address
from farflung.transport.net.sockets import listening_socket

_log = logging.getLogger("farflung.pages")

FILES = {
    "/": ("live.html", "text/html; charset=utf-8"),
    "/live.css": ("live.css", "text/css; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/live.js": ("live.js", "text/javascript; charset=utf-8"),
    "/map.js": ("map.js", "text/javascript; charset=utf-8"),
    "/act.js": ("act.js", "text/javascript; charset=utf-8"),
    "/timeline.js": ("timeline.js", "text/javascript; charset=utf-8"),
    "/whatif.js": ("whatif.js", "text/javascript; charset=utf-8"),
    "/grafana.json": ("grafana.json", "application/json"),
    "/api": ("api.html", "text/html; charset=utf-8"),
    "/api.js": ("api.js", "text/javascript; charset=utf-8"),
}
"""All files that are served, by their paths: no path of a request reaches the disk."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
LOCALHOST = "localhost"
COOKIE = "farflung-pages"
TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,256}")
MOST_CONNECTIONS = 100
"""More are hung up on at once, so that the page never takes many of the broker's file descriptors."""
REQUEST_SECONDS = 10.0
"""A connection without a whole request for so long is hung up on."""


def check_pages(address: str, token: str) -> None:
    """Refuse an address that needs a token without one, and a token that is easily guessed.

    Raises
    ------
    ConnectionFailed
        With what to do.
    """
    host, _ = parse_address(address)
    if not token and not _is_own(host):
        raise ConnectionFailed(
            f"the page on {address} could be read by all who reach it: give --web-token, or listen on"
            " 127.0.0.1 and look at it through `ssh -L 7701:127.0.0.1:7701 THIS-MACHINE`"
        )
    if token and TOKEN.fullmatch(token) is None:
        raise ConnectionFailed(
            "--web-token must be 16 to 256 letters, digits, dots, dashes, tildes or underscores:"
            " `openssl rand -hex 16` makes one"
        )


async def serve_pages(address: str, view: FleetView, token: str = "") -> None:
    """Serve the live page at `address` (HOST:PORT) until cancelled; the status is asked once a second.

    Raises
    ------
    ConnectionFailed
        The port is in use, or the address may not be used without a token.
    """
    check_pages(address, token)
    host, port = parse_address(address)
    listening = await listening_socket(host, port)
    _drop_dead_ones(listening)
    where = format_address(host, listening.getsockname()[1])
    feed = Feed(view.status)
    _log.info("the page of the fleet is at http://%s/", where)
    config = uvicorn.Config(
        application(feed, view, token),
        http=_Connection, ws="none", lifespan="off", timeout_graceful_shutdown=1,
        log_config=None, log_level="critical", access_log=False, server_header=False, date_header=False,
    )  # fmt: skip
    server = _Server(config)
    work = [asyncio.create_task(server.serve(sockets=[listening])), asyncio.create_task(feed.run())]
    try:
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        work[1].cancel()
        await asyncio.gather(*work, return_exceptions=True)
    for done in work:
        if not done.cancelled() and (error := done.exception()) is not None:
            raise error


def application(feed: Feed, view: FleetView, token: str = "") -> ASGIApp:
    """The ASGI application of the page."""
    files = [Route(path, _file(*file)) for path, file in FILES.items()]
    return _Guard(Starlette(routes=[*files, *routes_of(feed, view)]), token)


def _file(name: str, kind: str) -> Callable[[Request], object]:
    content = (resources.files("farflung.pages") / "static" / name).read_bytes()
    packed = gzip.compress(content, mtime=0)

    async def answer(request: Request) -> Response:
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(content, media_type=kind, headers={"vary": "accept-encoding"})
        how = {"vary": "accept-encoding", "content-encoding": "gzip"}
        return Response(packed, media_type=kind, headers=how)

    return answer


class _Guard:
    """Answers only requests that name this machine, or show the token; adds the headers of security."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        if scope["type"] == "http":
            request = Request(scope)
            await (self._refusal(request) or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that may not pass; None if it may."""
        if not self._token:
            own = _is_own(_host_of(request))
            return None if own else Response("this page is for this machine only\n", 403)
        if self._is_right(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            # Lax, since a link in somebody's mail leads here; what changes something needs another token.
            answer.set_cookie(COOKIE, self._token, httponly=True, samesite="lax")
            return answer
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if self._is_right(request.cookies.get(COOKIE, "")) or (scheme == "Bearer" and self._is_right(shown)):
            return None
        return Response("open the page once with ?token=TOKEN, that of --web-token\n", 401)

    def _is_right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())


def _is_own(host: str) -> bool:
    """Whether a name or an address is this machine's alone."""
    return host == LOCALHOST or is_loopback(host)


def _host_of(request: Request) -> str:
    """The name by which the browser found the page, without the port; empty if it is none."""
    with suppress(ValueError):
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return ""


class _Connection(H11Protocol):
    """Hangs up on connections beyond the limit, and on those that ask nothing."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._unasked = self.loop.call_later(REQUEST_SECONDS, self._hang_up_if_silent)

    def _hang_up_if_silent(self) -> None:
        if cast("object", self.cycle) is None:  # no request was read yet
            self.transport.abort()


class _Server(uvicorn.Server):
    """Leaves signals to the broker."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _drop_dead_ones(listening: socket.socket) -> None:
    """Have the system end connections, which inherit this, whose other end takes nothing for long."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SLOWEST_SECONDS * 1000))
