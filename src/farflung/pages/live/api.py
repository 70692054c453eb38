"""The API under /api/v1, and /metrics. It only reads, but for actions, which need a token of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from farflung.broker.network.allowances import Bucket, Rate
from farflung.broker.planning.what_if_messages import WhatIf
from farflung.broker.view import FleetView
from farflung.errors import FarflungError
from farflung.pages.live import prometheus
from farflung.pages.live.asking import Asked, Done
from farflung.pages.live.feed import Feed
from farflung.pages.live.openapi import described
from farflung.pages.live.prometheus import exposed
from farflung.pages.trace_file import trace_of

SLOWEST_SECONDS = 30.0
"""A viewer that takes nothing for so long is dropped."""
MOST_BODY = 2 * 2**20
BODY_SECONDS = 10.0
"""A request must be here after so long."""
RATES = {"step": Rate(2, 20), "what-if": Rate(2, 20), "act": Rate(0.5, 10)}
"""Of all viewers together: of what costs the broker, its workers or its store more than a look."""
OWN = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of a page of this server, and of an address that was typed."""
JSON = "application/json"

Answer = Callable[[Request], Awaitable[Response]]
_Kind = TypeVar("_Kind")


class _Refused(Exception):
    """A request that is not answered: an HTTP status, and why."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def routes_of(feed: Feed, view: FleetView) -> list[Route]:
    """All routes of the API. Errors are JSON: {"error": "one line"}."""
    read, posted = _of_job(view)
    routes = [Route(path, _refusing(answer)) for path, answer in {**_of_fleet(feed), **read}.items()]
    return [*routes, *(Route(path, _refusing(answer), methods=["POST"]) for path, answer in posted.items())]


def _of_fleet(feed: Feed) -> dict[str, Answer]:
    """What costs no more than a look at the newest picture."""

    async def status(_: Request) -> Response:
        return Response(feed.status, media_type=JSON)

    async def curves(_: Request) -> Response:
        return Response(feed.curves, media_type=JSON)

    async def events(request: Request) -> Response:
        last = request.headers.get("last-event-id", "")
        seen = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
        return _Stream(feed.events(seen), media_type="text/event-stream")

    async def openapi(_: Request) -> Response:
        return Response(described(), media_type=JSON)

    async def metrics(_: Request) -> Response:
        return Response(exposed(feed.newest.status), media_type=prometheus.TYPE)

    return {
        "/api/v1/status": status,
        "/api/v1/curves": curves,
        "/api/v1/events": events,
        "/api/v1/openapi.json": openapi,
        "/metrics": metrics,
    }


def _of_job(view: FleetView) -> tuple[dict[str, Answer], dict[str, Answer]]:
    """What is asked of one job: what is read, and what is posted."""
    limits = {name: Bucket(rate, time.monotonic()) for name, rate in RATES.items()}

    def take(name: str) -> None:
        if not limits[name].take(time.monotonic()):
            raise _Refused(429, "viewers ask for more than this broker gives: try again in some seconds")

    async def step(request: Request) -> Response:
        take("step")
        found = await view.step(request.path_params["job"])
        return Response(await asyncio.to_thread(msgspec.json.encode, found), media_type=JSON)

    async def trace(request: Request) -> Response:
        take("step")
        job = request.path_params["job"]
        made = await asyncio.to_thread(trace_of, await view.step(job))
        name = "".join(letter for letter in job if letter.isalnum() or letter in "-_")
        kept = {"content-disposition": f'attachment; filename="{name or "job"}-trace.json"'}
        return Response(made, media_type=JSON, headers=kept)

    async def log(request: Request) -> Response:
        return _json(view.log(request.path_params["job"]))

    async def what_if(request: Request) -> Response:
        asked = await _body(request, WhatIf)
        take("what-if")
        return _json(await view.what_if(asked))

    async def act(request: Request) -> Response:
        asked = await _body(request, Asked)
        take("act")
        return _json(Done(await view.act(asked.token, asked.action)))

    read: dict[str, Answer] = {
        "/api/v1/jobs/{job}/step": step,
        "/api/v1/jobs/{job}/trace": trace,
        "/api/v1/jobs/{job}/log": log,
    }
    return read, {"/api/v1/what-if": what_if, "/api/v1/act": act}


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)


def _refusing(answer: Answer) -> Answer:
    """The answer, or in JSON why there is none."""

    async def refusing(request: Request) -> Response:
        try:
            if request.headers.get("sec-fetch-site", OWN[0]) not in OWN:
                raise _Refused(403, "only a page of this server may ask, or a program")
            return await answer(request)
        except _Refused as refused:
            code, words = refused.status, str(refused)
        except FarflungError as error:
            code, words = 409, str(error)
        return Response(msgspec.json.encode({"error": words}), code, media_type=JSON)

    return refusing


async def _body(request: Request, kind: type[_Kind]) -> _Kind:
    """What a page of this server posts; a form of another site can send no JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != JSON:
        raise _Refused(403, f"post {JSON}, from a page of this server or a program")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise _Refused(413, f"at most {MOST_BODY:,} bytes are read")
    except TimeoutError:
        raise _Refused(408, "the request was not complete in time") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Refused(400, f"the request is not understood: {error}") from None


class _Stream(StreamingResponse):
    """A stream that ends if its viewer takes nothing for long."""

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(SLOWEST_SECONDS):
                await send(message)

        await super().stream_response(in_time)
