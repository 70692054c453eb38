"""What the broker keeps of what holders say about their links."""

from __future__ import annotations

import pytest
from tests.broker.scenario import Scenario

from farflung.broker.network import reports
from farflung.broker.network.reports import Reports
from farflung.protocol.reachability import LinkReport, Links


def links(*peers: str, job: str = "job-1", tried: str = "") -> Links:
    return Links(job, [LinkReport(peer, tried, 7000, None) for peer in peers])


def shown(kept: Reports) -> list[tuple[str, str, str]]:
    return [(view.holder, view.report.peer, view.report.tried) for view in kept.all()]


def test_the_newest_report_of_each_member_is_kept() -> None:
    story, kept = Scenario("a", "b", "c"), Reports()
    story.running(3)
    for holder, said in (("b", links("a", "c")), ("a", links("b")), ("b", links("c", tried="dialled: no"))):
        kept.add(story.state.jobs, holder, said)
    kept.add(story.state.jobs, "ana", links("a"))
    assert shown(kept) == [("a", "b", ""), ("ana", "a", ""), ("b", "c", "dialled: no")]
    story.cancel(collect=False)
    kept.add(story.state.jobs, "a", links("b", tried="lost"))  # what a doctor asks for when a job is over
    assert ("a", "b", "lost") in shown(kept)


def test_who_is_no_member_and_links_to_none_leave_nothing() -> None:
    story, kept = Scenario("a", "b", "stranger"), Reports()
    story.running(2)
    for holder, said in (
        ("stranger", links("a")),
        ("eve", links("a", "b")),
        ("a", links("a", "stranger", "nobody")),
        ("a", links("b", job="job-7")),
    ):
        kept.add(story.state.jobs, holder, said)
    assert shown(kept) == []
    kept.add(story.state.jobs, "a", links(*["b"] * 1000))
    assert shown(kept) == [("a", "b", "")]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAXIMUM_REPORTS_KEPT", 3)
    story, kept = Scenario("a", "b", "c"), Reports()
    story.running(3)
    for holder, said in (("a", links("b", "c")), ("b", links("a")), ("c", links("a"))):
        kept.add(story.state.jobs, holder, said)
    assert [holder for holder, _, _ in shown(kept)] == ["b", "c"]
