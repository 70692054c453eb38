"""What a job's traffic does to measurements: newer and settled wins."""

from __future__ import annotations

import math

import pytest

from farflung.broker.survey.measurements import Measurements, PairMeasurement
from farflung.broker.survey.passive import PassiveMeasurement
from farflung.protocol.reachability import LinkReport, Links
from farflung.transport.link.stats import LinkStatus

WORKERS = ["a", "b", "c"]


class Watch:
    """Reports of links, three seconds apart."""

    def __init__(self, *known: PairMeasurement) -> None:
        self.known = Measurements().updated(known)
        self.traffic = PassiveMeasurement(memory_seconds=7.0)
        self.now = 100.0
        self.carried: dict[tuple[str, str], int] = {}

    def report(
        self, holder: str, job: str = "job-1", grown: int = 10**6, latency: float | None = 9.0, **mbps: float
    ) -> None:
        """The holder's links from these peers, at these rates."""
        self.now += 3.0
        reports = []
        for peer, rate in mbps.items():
            self.carried[peer, holder] = self.carried.get((peer, holder), 0) + grown
            status = LinkStatus(
                peer, "direct", "h:1", "bbr", 1, None, None, 0, self.carried[peer, holder], latency, rate
            )
            reports.append(LinkReport(peer, "", 0, status))
        found = self.traffic.on_report(holder, Links(job, reports), WORKERS, self.known, self.now)
        self.known = self.known.updated(found)

    def link(self, sender: str, receiver: str) -> PairMeasurement | None:
        return self.known.pairs.get((sender, receiver))


def probed(mbps: float) -> PairMeasurement:
    return PairMeasurement("b", "a", mbps, 10.0, 1.0, dialled="a")


def test_a_faster_rate_is_believed_the_second_time() -> None:
    watch = Watch(probed(20.0))
    watch.report("a", b=30.0)
    assert watch.link("b", "a") == probed(20.0)
    watch.report("a", b=31.0)
    link = watch.link("b", "a")
    assert link is not None and (link.bandwidth_mbps, link.latency_ms, link.source, link.at) == (
        31.0,
        9.0,
        "traffic",
        106.0,
    )
    assert link.dialled == "a"


def test_the_same_rate_makes_a_measurement_newer_and_no_lower() -> None:
    watch = Watch(probed(20.0))
    for _ in range(2):
        watch.report("a", b=19.0)
    link = watch.link("b", "a")
    assert link is not None and (link.bandwidth_mbps, link.at) == (20.0, 106.0)


def test_a_much_slower_one_is_believed_the_third_time_if_nothing_else_was_busy() -> None:
    watch = Watch(probed(20.0))
    for expected in (20.0, 20.0, 5.0):
        watch.report("a", b=5.0)
        link = watch.link("b", "a")
        assert link is not None and link.bandwidth_mbps == expected


@pytest.mark.parametrize("other", ["the receiver's other link", "the sender's other link", "the submitter's"])
def test_on_a_shared_line_a_slower_rate_proves_nothing(other: str) -> None:
    watch = Watch(probed(20.0))
    for _ in range(6):
        if other == "the receiver's other link":
            watch.report("a", b=10.0, c=10.0)
        else:
            watch.report("c" if "sender" in other else "desk", b=10.0)
            watch.report("a", b=10.0)
    assert watch.link("b", "a") == probed(20.0)


def test_a_link_that_carries_nothing_keeps_its_probe_with_its_age() -> None:
    watch = Watch(probed(20.0))
    for _ in range(5):
        watch.report("a", grown=0, b=3.0)
    assert watch.link("b", "a") == probed(20.0)


def test_a_way_nobody_probed_is_learnt() -> None:
    watch = Watch()
    for _ in range(2):
        watch.report("a", b=12.0)
    link = watch.link("b", "a")
    assert link is not None and (link.bandwidth_mbps, link.latency_ms) == (12.0, 9.0)


def test_a_way_that_was_said_not_to_exist_does() -> None:
    watch = Watch(PairMeasurement("b", "a", 0.0, 0.0, 1.0, problem="no way"))
    for _ in range(2):
        watch.report("a", b=12.0)
    link = watch.link("b", "a")
    assert link is not None and (link.bandwidth_mbps, link.problem) == (12.0, "")


def test_rates_of_one_job_say_nothing_of_the_next() -> None:
    watch = Watch(probed(20.0))
    watch.report("a", job="job-1", b=30.0)
    watch.report("a", job="job-2", b=30.0)
    assert watch.link("b", "a") == probed(20.0)


@pytest.mark.parametrize("mbps", [math.nan, math.inf, -1.0, 0.0, 1e9])
def test_what_cannot_be_a_rate_is_none(mbps: float) -> None:
    watch = Watch(probed(20.0))
    for _ in range(4):
        watch.report("a", b=mbps, latency=math.nan)
    assert watch.link("b", "a") == probed(20.0)


def test_only_ways_between_workers_count() -> None:
    watch = Watch()
    for _ in range(3):
        watch.report("desk", b=12.0)
        watch.report("a", desk=12.0)
    assert not watch.known.pairs
