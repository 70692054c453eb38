"""How holders last said that their links stand: observed, never logged, and bounded whoever they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farflung.broker.core.records import Job
from farflung.protocol.messages import Links
from farflung.protocol.viewer import LinkView

MAXIMUM_REPORTS_KEPT = 20_000
"""Of all holders, each of a few hundred bytes, 2.6 KB at most; a thousand workers with ten links each fit."""


class Reports:
    """The newest report of each member of a job; who reported longest ago is forgotten first."""

    def __init__(self) -> None:
        self._newest: dict[str, Links] = {}

    def take(self, jobs: Mapping[str, Job], holder: str, links: Links) -> None:
        """Keep what a member of a job says of its links to other members; of anything else nothing."""
        job = jobs.get(links.job)
        if job is None:
            return
        members = {*job.members, job.submitter}
        reports = {report.peer: report for report in links.reports if report.peer in members - {holder}}
        if holder not in members or not reports:
            return
        self._newest.pop(holder, None)
        self._newest[holder] = Links(links.job, list(reports.values()))
        while sum(len(kept.reports) for kept in self._newest.values()) > MAXIMUM_REPORTS_KEPT:
            del self._newest[next(iter(self._newest))]

    def views(self) -> Iterator[LinkView]:
        """All of them, for the status, by holder."""
        for holder in sorted(self._newest):
            links = self._newest[holder]
            for report in links.reports:
                yield LinkView(holder, links.job, report)
