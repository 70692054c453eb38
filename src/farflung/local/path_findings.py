"""How links came about, as the doctor explains it: what was tried, what it came to, and what would help."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from farflung.local.finding import Finding
from farflung.paths.ways import advice, parts
from farflung.protocol.viewer import LinkView
from farflung.text import count_of

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
