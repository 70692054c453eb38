from __future__ import annotations

from farflung.protocol.messages import UnitReady
from farflung.protocol.worker import LinkBytes, LinkRate
from farflung.worker.traffic_meter import TrafficMeter


class Counters:
    """What was sent to each peer."""

    def __init__(self) -> None:
        self.sent = {"b": 100, "c": 30, "desk": 7}
        self.rates = {"b": 1e6}

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
    ready = UnitReady("job-1", 1, 0, [], 0, [LinkBytes("b", 80, 0), LinkBytes("c", 8, 0, 1)])
    counters.sent = {"b": 120, "c": 35, "desk": 10}
    first = meter.fill(ready)
    assert first.bytes_sent == 28
    assert first.rates == [LinkRate("b", 1e6)]
    assert first.links == [LinkBytes("b", 80, 20), LinkBytes("c", 8, 5, 1)]
    counters.sent["b"] += 3
    assert [link.wire_bytes for link in meter.fill(ready).links] == [3, 0]


def test_a_rate_is_reported_once_until_it_changes() -> None:
    counters = Counters()
    meter = TrafficMeter(counters)
    meter.begin(frozenset({"b", "c"}))
    ready = UnitReady("job-1", 1, 0, [], 0, [])
    assert meter.fill(ready).rates == [LinkRate("b", 1e6)]
    assert meter.fill(ready).rates == []
    counters.rates = {"b": 2e6, "c": 3e6}
    assert meter.fill(ready).rates == [LinkRate("b", 2e6), LinkRate("c", 3e6)]
    meter.begin(frozenset({"b"}))
    assert meter.fill(ready).rates == [LinkRate("b", 2e6)]
