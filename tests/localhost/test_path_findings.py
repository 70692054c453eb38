"""Whom the doctor tells to open a port: the machine that could not be dialled, wherever it is asked."""

from __future__ import annotations

from farflung.localhost.findings import path_findings
from farflung.protocol.reachability import LinkReport
from farflung.protocol.viewer import LinkView
from farflung.transport.link.stats import LinkStatus

TRIED = "dialled: 10.0.0.2:7 did not answer; asked to dial back: 10.0.0.1:5 refused"


def view(holder: str, peer: str, port: int, path: str | None, tried: str = TRIED) -> LinkView:
    link = None if path is None else LinkStatus(peer, path, "", "bbr", 1, None, None, 0, 0)
    return LinkView(holder, "job-1", LinkReport(peer, tried, port, link))


def test_a_reverse_link_names_the_port_that_could_not_be_dialled() -> None:
    views = [
        view("desk", "home-2", 9000, "reverse", "dialled: no"),
        view("home-2", "desk", 7002, "reverse", ""),
    ]
    (finding,) = path_findings(None, views, {"home-1", "home-2"})
    assert finding.ok and finding.found == "desk to home-2: reverse"
    assert finding.details[0] == "dialled: no"
    assert "let TCP port 7002 through to home-2 (" in finding.details[1] and "9000" not in finding.details[1]


def test_for_a_relayed_or_missing_link_either_worker_may_open_its_port() -> None:
    views = [view("home-1", "home-2", 7001, "relay through broker"), view("desk", "home-1", 9000, None)]
    relayed, missing = path_findings(None, views, {"home-1", "home-2"})
    assert relayed.details[:2] == [
        "dialled: 10.0.0.2:7 did not answer",
        "asked to dial back: 10.0.0.1:5 refused",
    ]
    assert "TCP port 7001 through to home-1 or a TCP port through to home-2 (" in relayed.details[2]
    assert not missing.ok and "let TCP port 7001 through to home-1 (" in missing.helps


def test_direct_links_give_one_finding() -> None:
    views = [view("a", "b", 1, "direct", ""), view("b", "a", 2, "direct", "")]
    (finding,) = path_findings("a", views, {"a", "b"})
    assert (
        finding.ok
        and finding.found.startswith("1 link between")
        and finding.found.endswith("reported: direct")
        and finding.details == []
    )
