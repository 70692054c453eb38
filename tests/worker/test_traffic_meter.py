from __future__ import annotations

from farflung.protocol.traffic import LinkRate
from farflung.worker.events import Traffic
from farflung.worker.linking.traffic_meter import TrafficMeter


class Counters:
    """What was sent to each peer."""

    def __init__(self) -> None:
        self.sent = {"b": 100, "c": 30, "desk": 7}
        self.rates = {"b": 1e6}
        self.state_bytes_sent = 1000

    @property
    def bytes_sent(self) -> int:
        return sum(self.sent.values())

    def bytes_sent_to(self, peer: str) -> int:
        return self.sent[peer]

    def rate_from(self, peer: str) -> float | None:
        return self.rates.get(peer)


def test_each_unit_has_what_left_since_the_one_before() -> None:
    counters = Counters()
    meter = TrafficMeter(counters)
    meter.begin(frozenset({"b", "c"}))
    counters.sent = {"b": 120, "c": 35, "desk": 10}
    assert meter.read(["b", "c"]) == Traffic(28, {"b": 20, "c": 5}, (LinkRate("b", 1e6),))
    counters.sent["b"] += 3
    counters.state_bytes_sent += 50
    assert meter.read(["b", "c"]) == Traffic(3, {"b": 3, "c": 0}, copied=50)


def test_a_rate_is_reported_once_until_it_changes() -> None:
    counters = Counters()
    meter = TrafficMeter(counters)
    meter.begin(frozenset({"b", "c"}))
    assert meter.read([]).rates == (LinkRate("b", 1e6),)
    assert meter.read([]).rates == ()
    counters.rates = {"b": 2e6, "c": 3e6}
    assert meter.read([]).rates == (LinkRate("b", 2e6), LinkRate("c", 3e6))
    meter.begin(frozenset({"b"}))
    assert meter.read([]).rates == (LinkRate("b", 2e6),)
