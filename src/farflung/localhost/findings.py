"""Findings of `farflung doctor` about a fleet: lost workers, missing ops, and links that are not direct.

For a link they name the routes that were tried, their results, and what would help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from farflung.connectivity.routes import advice, split_failures
from farflung.protocol.messages import Status
from farflung.protocol.viewer import DRAINING, OVER, SUSPECT, LinkView, WorkerStatus
from farflung.text import and_more, count_of, format_clock


class Finding(msgspec.Struct, frozen=True):
    """The result of one check: `found` as text, `details` as lines and, unless it is `ok`, what `helps`."""

    check: str
    ok: bool
    found: str
    helps: str = ""
    details: list[str] = []


NAMED = 5
QUEUED = "queued"


def fleet_findings(status: Status, broker: str) -> Iterator[Finding]:
    """What keeps a fleet from working: no worker can take a job, or a job waits."""
    there = [worker for worker in status.workers if not worker.is_away]
    able = [worker for worker in there if worker.state not in (DRAINING, SUSPECT)]
    join = (
        f"farflung join {broker}, on a machine that has joined before; elsewhere with --token, from"
        " `farflung token create --role worker` on the broker's machine"
    )
    if not there:
        gone = count_of(len(status.workers), "worker")
        found = (
            f"no worker is there: {gone} {'has' if len(status.workers) == 1 else 'have'} left or been lost"
        )
        yield Finding("fleet", False, found if status.workers else "no worker has joined yet", join)
    elif not able:
        states = and_more([f"{worker.worker} is {worker.state}" for worker in there], NAMED)
        yield Finding("fleet", False, f"no worker can take a job: {states}", join)
    for job in status.jobs:
        waits = job.state == QUEUED or job.waits_for or job.held
        if waits and job.state not in OVER:
            helps = f"farflung attach {job.job} follows it"
            if job.waits_for:
                where = "its machine" if len(job.waits_for) == 1 else "their machines"
                helps = f"`farflung join` on {where} starts {and_more(job.waits_for, NAMED)} again; {helps}"
            yield Finding("job", False, f"{job.job} does not train: {job.reason or job.condition}", helps)


def lost_findings(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """One finding for each worker whose connection was lost; one that left by itself is in order."""
    for worker in workers:
        if worker.is_lost:
            found = f"{worker.worker} was lost"
            if worker.last_seen_seconds >= 0:
                found += f", last seen {format_clock(worker.last_seen_seconds)} ago"
            helps = (
                "run `farflung doctor` on its machine; if its worker has ended, start it with `farflung join`"
            )
            yield Finding("worker", False, found, helps)


def opset_findings(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """One finding for each connected worker that has an older opset than another or refuses ops."""
    present = [worker for worker in workers if not worker.is_away]
    newest = max((worker.opset for worker in present), default=0)
    for worker in present:
        if worker.opset < newest:
            found = f"{worker.worker} knows opset version {worker.opset}, others {newest}"
            helps = f"install a newer farflung on {worker.worker}: models with newer ops leave it out"
            yield Finding("opset", False, found, helps)
        if worker.lacks:
            named = and_more(worker.lacks, NAMED)
            yield Finding(
                "opset", True, f"{worker.worker} cannot run models with {named}: its backend lacks it"
            )


DIRECT, REVERSE = "direct", "reverse"


def path_findings(
    holder: str | None, views: Sequence[LinkView], workers: Collection[str]
) -> Iterator[Finding]:
    """One finding for each link of `holder` (None: of any) that is missing or not direct, or one for all.

    A link that is up is ok, whatever its route. The advice concerns the machines that could not be dialled.
    Only `workers` can follow it, because a submitter's port changes each time.
    """
    mine = [view for view in views if holder in (None, view.holder, view.report.peer)]
    odd = [view for view in mine if view.report.link is None or view.report.tried]
    if mine and not odd:
        routes = sorted({view.report.link.path for view in mine if view.report.link is not None})
        links = count_of(len({frozenset((view.holder, view.report.peer)) for view in mine}), "link")
        yield Finding("path", True, f"{links} between members of jobs, as last reported: {', '.join(routes)}")
    ports = {view.holder: view.report.port for view in views}
    for view in odd:
        yield _explained(view, {name: ports.get(name, 0) for name in _closed(view) if name in workers})


def _closed(view: LinkView) -> tuple[str, ...]:
    """The machines whose open port would have made the link direct: the dialled one, or either."""
    link = view.report.link
    if link is not None and link.path == REVERSE:
        return (view.report.peer,)
    return view.holder, view.report.peer


def _explained(view: LinkView, closed: dict[str, int]) -> Finding:
    report = view.report
    ends, helps, tried = f"{view.holder} to {report.peer}", advice(closed), split_failures(report.tried)
    if report.link is None:
        return Finding("path", False, f"{ends}: {'no route' if tried else 'the link is lost'}", helps, tried)
    path = report.link.path
    if path == DIRECT:
        return Finding("path", True, f"{ends}: direct, after other routes failed", details=tried)
    return Finding("path", True, f"{ends}: {path}", details=[*tried, f"for a direct path: {helps}"])
