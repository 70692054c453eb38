"""The API described in OpenAPI 3.1, from the structs that it sends and takes."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from farflung.broker.job_log import LogLine
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf
from farflung.pages.live.asking import Asked, Done
from farflung.pages.live.curves import JobCurve
from farflung.pages.live.feed import Picture
from farflung.protocol.timeline import StepTimeline

JSON = "application/json"
TEMPLATE = "#/components/schemas/{name}"


class _Way(NamedTuple):
    """One path: what it is for, what it answers with, and what it takes."""

    words: str
    answer: type | Any
    kind: str = JSON
    takes: type | None = None


WAYS: dict[str, _Way] = {
    "/api/v1/status": _Way("Workers, jobs and links now, as `farflung status --json` has them.", Picture),
    "/api/v1/curves": _Way("The loss of each job that is listed, by job.", dict[str, JobCurve]),
    "/api/v1/events": _Way(
        "Server-sent events: the status each time it changes, at most once a second; resumed by id.",
        Picture,
        "text/event-stream",
    ),
    "/api/v1/jobs/{job}/step": _Way(
        "What ran when in a step of a job, just now or the next one: it takes as long as a step or two.",
        StepTimeline,
    ),
    "/api/v1/jobs/{job}/trace": _Way("The same as a trace file for https://ui.perfetto.dev.", Any),
    "/api/v1/jobs/{job}/log": _Way(
        "What the broker's log said of a job since the broker was started: at most 200 lines.", list[LogLine]
    ),
    "/api/v1/what-if": _Way("Plan a job that runs again, with changes.", Foreseen, takes=WhatIf),
    "/api/v1/act": _Way(
        "End a job, drain a worker, remove or allow a member, with an operator's token; or end a job, with"
        " its submitter's. The broker logs it.",
        Done,
        takes=Asked,
    ),
    "/metrics": _Way("Figures for Prometheus.", str, "text/plain"),
}


@cache
def described() -> bytes:
    """The OpenAPI document, in JSON."""
    kinds = [way.answer for way in WAYS.values()] + [way.takes for way in WAYS.values() if way.takes]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=TEMPLATE)
    answers, taken = schemas[: len(WAYS)], iter(schemas[len(WAYS) :])
    paths = {
        path: {("post" if way.takes else "get"): _operation(path, way, answer, taken)}
        for (path, way), answer in zip(WAYS.items(), answers, strict=True)
    }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "farflung fleet", "version": version("farflung")},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(path: str, way: _Way, answer: dict[str, Any], taken: Any) -> dict[str, Any]:
    refused = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    made: dict[str, Any] = {
        "summary": way.words,
        "responses": {
            "200": {"description": "the answer", "content": {way.kind: {"schema": answer}}},
            "default": {"description": "why there is none", "content": {JSON: {"schema": refused}}},
        },
    }
    if "{job}" in path:
        job = {"name": "job", "in": "path", "required": True, "schema": {"type": "string"}}
        made["parameters"] = [job]
    if way.takes is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": next(taken)}}}
    return made
