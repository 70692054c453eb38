"""The newest link reports of workers and submitters, kept in bounded memory and never stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from farflung.broker.core.records import Job
from farflung.protocol.messages import Links
from farflung.protocol.viewer import LinkView

MAXIMUM_REPORTS_KEPT = 20_000
"""Reports of all holders together: enough for a thousand workers with ten links each.

A report takes a few hundred bytes, at most 2.6 KB.
"""


class Reports:
    """The newest report of each member of a job; the oldest are dropped first."""

    def __init__(self) -> None:
        self._newest: dict[str, Links] = {}

    def add(self, jobs: Mapping[str, Job], holder: str, links: Links) -> None:
        """Keep a member's reports about links to other members of its job, and ignore all others."""
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

    def all(self) -> Iterator[LinkView]:
        """All reports for `farflung status`, sorted by holder."""
        for holder in sorted(self._newest):
            links = self._newest[holder]
            for report in links.reports:
                yield LinkView(holder, links.job, report)
