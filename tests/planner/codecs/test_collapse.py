"""A line that collapses under short messages, by replay: from the bytes that come to the switch."""

from __future__ import annotations

import random

import pytest
from tests.planner.codecs.chains import context
from tests.planner.codecs.tables import RUNGS
from tests.transport.link.test_rate_estimator_incoming import burst

from farflung.planner.codecs.controller import Controller, LinkMeasured, Switch, UnitMeasured
from farflung.planner.codecs.decisions import on_event
from farflung.planner.codecs.limits import Limits
from farflung.transport.link.rate_estimator import ReceiveRate
from farflung.worker.linking.traffic_meter import TrafficMeter

FAST, SLOW = 1e7, 1e5
MESSAGE_BYTES = 6_000
PACKET_BYTES = 1448


class OneWay:
    """What came over the way from `a`, as a meter reads it."""

    def __init__(self) -> None:
        self.capacity, self.now = ReceiveRate(), 0.0
        self.jitter = random.Random(1)

    bytes_sent = 0
    state_bytes_sent = 0

    def bytes_sent_to(self, peer: str) -> int:
        return 0

    def rate_from(self, peer: str) -> float | None:
        return self.capacity.recent_bytes_per_second

    def step(self, microbatches: int, rate: float) -> None:
        for _ in range(microbatches):
            rate *= self.jitter.uniform(0.97, 1.03)
            end = self.now + MESSAGE_BYTES / rate
            burst(self.capacity, self.now, MESSAGE_BYTES, rate, read=PACKET_BYTES / rate)
            self.now = end + 0.05
        self.capacity.on_bytes(1, self.now, was_due=False)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_collapsing_rate_is_answered_within_ten_steps(microbatches: int) -> None:
    where = context(
        {(0, 1): 80.0, (1, 0): 80.0},
        workers=2,
        megabytes=MESSAGE_BYTES / 1e6,
        compute_seconds=0.02,
        microbatches=microbatches,
    )
    controller, _ = Controller.start(where, RUNGS, Limits(1.0, roughest="int8/eden2"))
    line, switches = OneWay(), list[Switch]()
    meter = TrafficMeter(line)
    meter.begin(frozenset({"a"}))
    for number in range(40):
        line.step(microbatches, FAST if number < 20 else SLOW)
        rates = tuple(LinkMeasured("a", "b", rate.bytes_per_second) for rate in meter.rates())
        assert number >= 20 or not rates
        controller, more = on_event(controller, UnitMeasured(number, rates))
        switches.extend(more)
    first = switches[0]
    assert 20 < first.unit <= 30, first
    assert (first.source, first.target) == ("a", "b") and "Mbit/s" in first.reason
