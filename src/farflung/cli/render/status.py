"""A broker's status as text, in tables as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from farflung.cli.render.tables import fitting, own_width
from farflung.protocol.viewer import LEFT, OVER
from farflung.text import count_of, format_clock, format_number, format_rate

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.protocol.viewer import JobStatus, LinkView, WorkerStatus

WORKER = ("worker", "state", "device", "framework", "site", "address", "seen", "job")
JOB = ("job", "name", "state", "step", "loss", "samples/s")
LINK = ("link", "route", "congestion control", "round trip", "rate", "codecs", "ratio", "codec time a step")


def status_lines(status: Status) -> Iterator[str]:
    """The output of `farflung status`."""
    from farflung.localhost.findings import opset_findings

    yield f"broker {status.version}, up {format_clock(status.uptime_seconds)}"
    yield status.workers_counted()
    yield from fitting(WORKER, [_worker(worker) for worker in status.workers])
    for worker in status.workers:
        if worker.reason:
            since = f" {format_clock(worker.gone_seconds)} ago" if worker.state == LEFT else ""
            yield from _wrapped(f"  {worker.worker}: {worker.state}{since}: {worker.reason}")
    for finding in opset_findings(status.workers):
        yield from _wrapped(finding.found)
    yield count_of(len(status.jobs), "job")
    yield from fitting(JOB, [_job(job) for job in status.jobs])
    for job in status.jobs:
        if job.reason:
            yield from _wrapped(f"  {job.job}: {job.reason}")
        for words in (job.protection, job.planning):
            if words:
                yield from _wrapped(f"  {job.job}: {words}")
    yield from _links(status)


def job_line(job: JobStatus) -> str:
    """One job in one line, as `farflung attach` shows it."""
    _, _, state, steps, loss, speed = _job(job)
    facts = [f"{job.job} {state}", f"step {steps}"]
    facts += [f"loss {loss}"] if loss else []
    facts += [f"{speed} samples/s"] if speed else []
    return "  ".join(facts) + (f": {job.reason}" if job.reason else "")


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(
        words, own_width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _links(status: Status) -> Iterator[str]:
    over = {job.job for job in status.jobs if job.state in OVER}
    links = [view for view in status.links if view.job not in over]
    relays = f"the broker relays up to {format_rate(status.relay_mbps)}"
    in_use = sum(view.report.link is not None for view in links)
    yield f"{count_of(in_use, 'link')} in use; {relays}"
    written = {(job.job, one.source, one.target): one.codec for job in status.jobs for one in job.codecs}
    carried = {
        (job.job, link.source, link.target): (link.ratio, link.coding_seconds / max(1, job.step))
        for job in status.jobs
        for link in job.links
    }
    rows = [_link(view, written, carried.get((view.job, view.holder, view.report.peer))) for view in links]
    yield from fitting(LINK, rows)


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    seen = f"{worker.last_seen_seconds:.0f} s ago" if worker.last_seen_seconds >= 0 else "not yet"
    return (
        worker.worker,
        worker.state,
        worker.device,
        worker.framework,
        worker.site,
        worker.address,
        seen,
        worker.job,
    )


def _link(
    view: LinkView, written: Mapping[tuple[str, str, str], str], carried: tuple[float | None, float] | None
) -> tuple[str, ...]:
    """`carried` is the ratio of fp32 bytes to wire bytes, and the codecs' CPU seconds per step."""
    link = view.report.link
    ends = f"{view.holder} -> {view.report.peer}"
    if link is None:
        return ends, "not connected: farflung doctor shows why", "", "", "", "", "", ""
    round_trip = "" if link.round_trip_ms is None else f"{link.round_trip_ms:.1f} ms"
    sends_at = "" if link.rate_mbps is None else format_rate(link.rate_mbps)
    codec = written.get((view.job, view.holder, view.report.peer), "")
    ratio, seconds = carried or (None, 0.0)
    shrunk = "" if ratio is None else f"{ratio:.2f}x"
    coding = f"{1e3 * seconds:.1f} ms" if seconds else ""
    return ends, link.path, link.congestion_control, round_trip, sends_at, codec, shrunk, coding


def _job(job: JobStatus) -> tuple[str, ...]:
    loss = "emulated" if job.emulated else "" if job.loss is None else f"{job.loss:.4f}"
    speed = "" if job.samples_per_second is None else format_number(job.samples_per_second)
    return job.job, job.name, job.state, f"{job.step}/{job.steps}", loss, speed
