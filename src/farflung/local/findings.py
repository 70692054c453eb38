"""What the doctor finds.

Which workers some models will be planned without, because they lack ops.

How links came about, as the doctor explains it: what was tried, what it came to, and what would help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from farflung.connectivity.routes import advice, parts
from farflung.protocol.viewer import LinkView, WorkerStatus
from farflung.text import and_more, count_of


class Finding(msgspec.Struct, frozen=True):
    """One check: `found` in words, `details` a line each and, where it is not `ok`, what `helps`."""

    check: str
    ok: bool
    found: str
    helps: str = ""
    details: list[str] = []


NAMED = 5


def opset_findings(workers: Sequence[WorkerStatus]) -> Iterator[Finding]:
    """One finding for each connected worker with an older opset than another, or with ops that it refuses."""
    present = [worker for worker in workers if worker.state not in ("lost", "left")]
    newest = max((worker.opset for worker in present), default=0)
    for worker in present:
        if worker.opset < newest:
            found = f"{worker.worker} knows opset version {worker.opset}, others {newest}"
            helps = f"install a newer farflung on {worker.worker}: models with newer ops leave it out"
            yield Finding("opset", False, found, helps)
        if worker.lacks:
            named = and_more(worker.lacks, NAMED)
            yield Finding("opset", True, f"{worker.worker} takes no model with {named}: its backend lacks it")


DIRECT, REVERSE = "direct", "reverse"


def path_findings(
    holder: str | None, views: Sequence[LinkView], workers: Collection[str]
) -> Iterator[Finding]:
    """One finding for each link of `holder` (None: of anybody) that is missing or not direct, or one for all.

    A link that stands is well, however it came about. The advice is for the machines that could not be
    dialled; only `workers` can follow it, as a submitter's port is another each time.
    """
    mine = [view for view in views if holder in (None, view.holder, view.report.peer)]
    odd = [view for view in mine if view.report.link is None or view.report.tried]
    if mine and not odd:
        ways = sorted({view.report.link.path for view in mine if view.report.link is not None})
        links = count_of(len({frozenset((view.holder, view.report.peer)) for view in mine}), "link")
        yield Finding("path", True, f"{links} between members of jobs, as last reported: {', '.join(ways)}")
    ports = {view.holder: view.report.port for view in views}
    for view in odd:
        yield _explained(view, {name: ports.get(name, 0) for name in _closed(view) if name in workers})


def _closed(view: LinkView) -> tuple[str, ...]:
    """Whose port, had it been open, would have made the link direct: the dialled one, or either."""
    link = view.report.link
    if link is not None and link.path == REVERSE:
        return (view.report.peer,)
    return view.holder, view.report.peer


def _explained(view: LinkView, closed: dict[str, int]) -> Finding:
    report = view.report
    ends, helps, tried = f"{view.holder} to {report.peer}", advice(closed), parts(report.tried)
    if report.link is None:
        return Finding("path", False, f"{ends}: {'no way' if tried else 'the link is lost'}", helps, tried)
    path = report.link.path
    if path == DIRECT:
        return Finding("path", True, f"{ends}: direct, after other ways failed", details=tried)
    return Finding("path", True, f"{ends}: {path}", details=[*tried, f"for a direct path: {helps}"])
