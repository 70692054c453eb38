"""A run's trace, as a collector receives it over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.client.output.test_run_folder import row

from farflung.client.output.log_observer import LoggingObserver
from farflung.client.output.sinks import open_sink, parse_log
from farflung.schedule import Unit

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="`make dev` installs opentelemetry"
)


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector of this machine: its URL, and all spans that it got."""
    spans: list[Any] = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            asked = trace_service.ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span for one in asked.resource_spans for scope in one.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        server.shutdown()


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_run_is_a_span_with_one_for_each_thing_that_it_did(tmp_path: Path) -> None:
    with collector() as (url, spans):
        opened = partial(open_sink, parse_log(f"otel:{url}"), tmp_path, "gpt", {"steps": 2, "run": "abc"})
        observer = LoggingObserver(opened, pytest.fail)
        observer.waiting("waiting for 1 more worker")
        observer.waiting("waiting for 1 more worker")
        observer.loading(1, 2)
        observer.loading(2, 2)
        observer.running()
        observer.working(Unit(0, True, 0, 2), 0)
        observer.stepped(row(1, 2.5))
        observer.warned("lost worker home")
        observer.working(Unit(1, False, 1, 2), 0)
        observer.validated(1, 1.25, {})
        observer.ended("failed", "no worker is left")
        observer.close()
        observer.wait()
    by_name = {span.name: span for span in spans}
    assert list(by_name) == ["waiting", "loading", "training", "validating", "train gpt"]
    run = by_name.pop("train gpt")
    about = attributes(run)
    assert (about["config.run"], about["step"], about["train.loss"]) == ("abc", 1, 2.5)
    assert (about["validation.loss"], about["outcome"], run.status.message) == (
        1.25,
        "failed",
        "no worker is left",
    )
    assert {span.parent_span_id for span in by_name.values()} == {run.span_id}
    (event,) = by_name["training"].events
    assert (event.name, attributes(event)) == ("warning", {"words": "lost worker home"})
    times = [
        moment for span in by_name.values() for moment in (span.start_time_unix_nano, span.end_time_unix_nano)
    ]
    assert times == sorted(times)  # each begins as the one before ends


def test_a_collector_that_is_not_there_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    opened = partial(open_sink, parse_log("otel:http://127.0.0.1:9"), tmp_path, "gpt", {})
    warned: list[str] = []
    observer = LoggingObserver(opened, warned.append)
    observer.running()
    observer.ended("done", "")
    observer.close()
    observer.wait(20)
    assert warned == []  # neither the run nor its end waits for a collector
