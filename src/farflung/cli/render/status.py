"""A broker's status as text, in tables as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.cli.render.tables import fitting, own_width
from farflung.plans.rates import tflops_text
from farflung.protocol.viewer import LEFT, OVER
from farflung.text import and_more, count_of, format_clock, format_number, format_rate
from farflung.transport.net.addresses import is_loopback

if TYPE_CHECKING:
    from farflung.protocol.messages import Status
    from farflung.protocol.viewer import JobStatus, LinkView, WorkerStatus

WORKER = ("worker", "state", "device", "TFLOP/s", "framework", "site", "address", "seen", "job")
JOB = ("job", "name", "state", "step", "loss", "samples/s")
MEMBERS = 20
"""So many members of a job are named."""
RECENT = 3
"""So many of the workers that have left are shown, and of the jobs that are over: the newest."""
LINK = ("link", "route", "congestion control", "round trip", "rate", "codecs", "ratio", "codec time a step")


def status_lines(status: Status, everything: bool = False) -> Iterator[str]:
    """The output of `farflung status`; it folds most workers that have left and most jobs that are over."""
    from farflung.localhost.findings import opset_findings

    yield f"broker {status.version}, up {format_clock(status.uptime_seconds)}"
    yield status.workers_counted()
    there = [worker for worker in status.workers if worker.state != LEFT]
    yield from fitting(WORKER, [_worker(worker) for worker in there])
    for worker in there:
        if worker.reason:
            yield from _wrapped(f"  {worker.worker}: {worker.state}: {worker.reason}")
    yield from _left(status, len(status.workers) if everything else RECENT)
    for finding in opset_findings(status.workers):
        yield from _wrapped(finding.found)
    yield from job_lines(status.jobs, everything)
    yield from _links(status)


def job_lines(
    all_jobs: Sequence[JobStatus], everything: bool = False, members: bool = False
) -> Iterator[str]:
    """Jobs as a table, with what there is to say of each, such as its `members`.

    Most that are over are folded.
    """
    yield count_of(len(all_jobs), "job")
    over = [job for job in all_jobs if job.state in OVER]
    folded = [] if everything else over[:-RECENT]
    jobs = [job for job in all_jobs if job not in folded]
    yield from fitting(JOB, [_job(job) for job in jobs])
    if folded:
        states = Counter(job.state for job in folded)
        counts = ", ".join(f"{states[state]} {state}" for state in OVER if states[state])
        yield f"  and {count_of(len(folded), 'older job')}: {counts} (--all lists them)"
    for job in jobs:
        if members and job.workers:
            yield from _wrapped(f"  {job.job}: on {and_more(job.workers, MEMBERS)}")
        if job.reason:
            yield from _wrapped(f"  {job.job}: {job.reason}")
        for words in (job.bottleneck, job.protection, job.planning):
            if words:
                yield from _wrapped(f"  {job.job}: {words}")


def _left(status: Status, shown: int) -> Iterator[str]:
    """The workers that have left, those that left last first."""
    left = sorted((one for one in status.workers if one.state == LEFT), key=lambda one: one.gone_seconds)
    for worker in left[:shown]:
        why = f": {worker.reason}" if worker.reason else ""
        yield from _wrapped(f"  {worker.worker}: left {format_clock(worker.gone_seconds)} ago{why}")
    if left[shown:]:
        yield f"  and {count_of(len(left[shown:]), 'worker')} before (--all lists them)"


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
    rows = []
    for view in links:
        ends = view.holder, view.report.peer
        is_near = is_loopback(_host(view))
        rows.append(_link(view, written, carried.get((view.job, *ends)), is_near))
    yield from fitting(LINK, rows)


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    seen = f"{worker.last_seen_seconds:.0f} s ago" if worker.last_seen_seconds >= 0 else "not yet"
    return (
        worker.worker,
        worker.state,
        worker.device,
        tflops_text(worker.tflops, worker.rates) if worker.tflops else "",
        worker.framework,
        worker.site,
        worker.address,
        seen,
        worker.job,
    )


def _host(view: LinkView) -> str:
    """The address at which a link's holder sees the other end; empty if it does not, or sees a relay."""
    link = view.report.link
    if link is None or link.path not in ("direct", "reverse"):
        return ""
    return link.remote.rpartition(":")[0].strip("[]")


def _link(
    view: LinkView,
    written: Mapping[tuple[str, str, str], str],
    carried: tuple[float | None, float] | None,
    is_near: bool,
) -> tuple[str, ...]:
    """`carried` is the ratio of fp32 bytes to wire bytes, and the codecs' CPU seconds per step.

    A link that `is_near` has both ends on one machine: the rate of what it sends says nothing of a line.
    """
    link = view.report.link
    ends = f"{view.holder} -> {view.report.peer}"
    if link is None:
        return ends, "not connected: farflung doctor shows why", "", "", "", "", "", ""
    round_trip = "" if link.round_trip_ms is None else f"{link.round_trip_ms:.1f} ms"
    sends_at = "" if link.rate_mbps is None else format_rate(link.rate_mbps)
    sends_at = "within one machine" if is_near else sends_at
    codec = written.get((view.job, view.holder, view.report.peer), "")
    ratio, seconds = carried or (None, 0.0)
    shrunk = "" if ratio is None else f"{ratio:.2f}x"
    coding = f"{1e3 * seconds:.1f} ms" if seconds else ""
    return ends, link.path, link.congestion_control, round_trip, sends_at, codec, shrunk, coding


def _job(job: JobStatus) -> tuple[str, ...]:
    loss = "emulated" if job.emulated else "" if job.loss is None else f"{job.loss:.4f}"
    speed = "" if job.samples_per_second is None else format_number(job.samples_per_second)
    return job.job, job.name, job.condition, f"{job.step}/{job.steps}", loss, speed
