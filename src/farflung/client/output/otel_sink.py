"""A run as a trace of OpenTelemetry: a span for the run, and one for each thing that it did or waited for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from farflung.client.output.records import Outcome
from farflung.client.output.sinks import Happening, Opening, Sink

PHASES = ("waiting", "loading", "training", "validating", "collecting")
"""Happenings that last until the next one of them; the others are events of the span that they fall into."""
MOST_EVENTS = 100
"""Of one span; OpenTelemetry itself drops older ones beyond 128."""


class OtelSink(Sink):
    """Sends the trace by OTLP over HTTP, to the collector that WHERE or `OTEL_EXPORTER_OTLP_ENDPOINT` names.

    The run's span has the configuration, the newest numbers and the outcome as attributes. A resumed run is a
    trace of its own, with the same `config.run`.
    """

    def __init__(self, opening: Opening) -> None:
        self._trace: Any = import_module("opentelemetry.trace")
        sdk: Any = import_module("opentelemetry.sdk.trace")
        export: Any = import_module("opentelemetry.sdk.trace.export")
        otlp: Any = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources: Any = import_module("opentelemetry.sdk.resources")
        where = {"endpoint": f"{opening.where.rstrip('/')}/v1/traces"} if opening.where else {}
        resource = resources.Resource.create({"service.name": "farflung"})
        self._provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter(**where)))
        self._tracer = self._provider.get_tracer("farflung")
        attributes = {f"config.{name}": value for name, value in opening.configuration.items()}
        self._run = self._tracer.start_span(f"train {opening.job}", attributes=attributes)
        self._inside = self._trace.set_span_in_context(self._run)
        self._phase: Any = None
        self._kind = ""
        self._events = 0

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        found = {name.replace("/", "."): value for name, value in numbers.items()}
        for span in (self._run, self._phase):
            if span is not None:
                span.set_attributes({"step": step, **found})

    def tell(self, happening: Happening) -> None:
        at = int(happening.at * 1e9)
        if happening.kind in PHASES:
            self._begin(happening, at)
        elif self._events < MOST_EVENTS:
            self._events += 1
            about = {"words": happening.words} if happening.words else {}
            (self._phase or self._run).add_event(happening.kind, about, at)

    def close(self, outcome: Outcome) -> None:
        self._end_phase(None)
        self._run.set_attributes({"outcome": outcome.state, "reason": outcome.reason})
        if outcome.state == "failed":
            self._run.set_status(self._trace.Status(self._trace.StatusCode.ERROR, outcome.reason))
        self._run.end()
        self._provider.shutdown()

    def _begin(self, happening: Happening, at: int) -> None:
        """Begin a phase, unless it is the one that goes on."""
        if happening.kind == self._kind:
            return
        self._end_phase(at)
        about = {"words": happening.words} if happening.words else {}
        self._phase = self._tracer.start_span(happening.kind, self._inside, attributes=about, start_time=at)
        self._kind, self._events = happening.kind, 0

    def _end_phase(self, at: int | None) -> None:
        if self._phase is not None:
            self._phase.end(at)
        self._phase, self._kind = None, ""
