"""How links came about, as the doctor explains it: what was tried, what it came to, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farflung.local.finding import Finding
from farflung.paths.ways import advice
from farflung.protocol.messages import LinkView

DIRECT = "direct"


def path_findings(holder: str | None, views: Sequence[LinkView]) -> Iterator[Finding]:
    """One finding for each link of `holder` (None: of anybody) that is missing or not direct, or one for all.

    A link that stands is well, however it came about; then `found` says what would make it direct.
    """
    mine = [view for view in views if holder in (None, view.holder, view.report.peer)]
    odd = [view for view in mine if view.report.link is None or view.report.tried]
    if mine and not odd:
        ways = sorted({view.report.link.path for view in mine if view.report.link is not None})
        yield Finding("path", True, f"{len(mine)} ends of links were reported last: {', '.join(ways)}")
    for view in odd:
        yield _explained(view)


def _explained(view: LinkView) -> Finding:
    report = view.report
    ends, helps = f"{view.holder} to {report.peer}", advice(report.port)
    if report.link is None:
        return Finding("path", False, f"{ends}: {report.tried or 'the link is lost'}", helps)
    path = report.link.path
    if path == DIRECT:
        return Finding("path", True, f"{ends}: direct, after other ways failed ({report.tried})")
    return Finding("path", True, f"{ends}: {path}, because {report.tried}. For a direct path, {helps}")
