"""Lower bounds on a step from one microbatch that has a replica to itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from farflung.plans import FEEDER
from farflung.simulator.costs import Codable, LinkCosts, TaskSeconds, Transfer

_NEVER = float("inf")


class _Work(NamedTuple):
    """Work of a resource per microbatch: seconds, and the least time before the first and after the last."""

    busy: float
    head: float
    tail: float


def _bound(works: Sequence[_Work], microbatches: int) -> float:
    """The largest of head + M busy + tail over the work of one resource, by itself and in combination.

    A device that has finished all forward passes before a gradient is back cannot begin the backward passes
    earlier. So every set of work counts that begins no earlier than one part and ends no later than another.
    """
    best = max(head + microbatches * busy + tail if busy else 0.0 for busy, head, tail in works)
    if len(works) == 2:
        (busy, head, tail), (other_busy, other_head, other_tail) = works
        return max(best, min(head, other_head) + microbatches * (busy + other_busy) + min(tail, other_tail))
    if len(works) > 2:
        for _, head, _ in works:
            for _, _, tail in works:
                busy = sum(work.busy for work in works if work.head >= head and work.tail >= tail)
                best = max(best, head + microbatches * busy + tail if busy else 0.0)
    return best


class _Hop(NamedTuple):
    """A message between two segments: seconds of its parts, and of the links and access lines it uses."""

    source: int
    target: int
    whole: float
    encode: float
    decode: float
    latency: float
    link: float
    up: float
    down: float


@dataclass
class Alone:
    """One microbatch that has a whole replica to itself: the earliest start of everything."""

    workers: Sequence[int]
    seconds: Sequence[TaskSeconds]
    transfers: Sequence[Transfer]
    costs: LinkCosts
    begins: dict[int, float]
    ends: list[float]
    works: dict[tuple[str, int, int], list[_Work]] = field(default_factory=dict)

    def bound(self, microbatches: int, window: int) -> float:
        """The largest lower bound for this number of microbatches."""
        self._compute_heads()
        self._collect_work()
        works = list(self.works.values())
        best = max(_bound(each, microbatches) for each in works)
        if window < microbatches:
            rounds, last = divmod(microbatches - 1, window)
            trips = [rounds * self._round_trip(source) for source in self._sources]
            best = max(best, *(trip + self._around(s) for trip, s in zip(trips, self._sources, strict=True)))
            if len(trips) == 1:
                # Heads may include waiting for a worker's begin, which is over when the last round begins.
                waits = max(self.begins.values()) - self._forward[self._sources[0]]
                best = max(best, trips[0] - waits + max(_bound(each, last + 1) for each in works))
        return best

    def _compute_heads(self) -> None:
        inner = [transfer for transfer in self.transfers if transfer.source != FEEDER]
        self._up = [self._hop(r.source, r.target, r.forward_bytes, r.activations, False) for r in inner]
        self._down = [self._hop(r.target, r.source, r.backward_bytes, r.gradients, True) for r in inner]
        self._up.sort(key=lambda hop: hop.source)
        self._down.sort(key=lambda hop: -hop.source)
        self._sources = sorted(set(range(len(self.workers))) - {hop.target for hop in self._up})
        self._forward, self._backward = self._starts([self.begins[worker] for worker in self.workers])
        self._compute_tails()

    def _starts(self, begins: list[float]) -> tuple[list[float], list[float]]:
        """The earliest starts of all forward and backward passes, no forward pass before its `begins`."""
        forward = list(begins)
        for hop in self._up:
            ready = forward[hop.source] + self.seconds[hop.source].forward + hop.whole
            forward[hop.target] = max(forward[hop.target], ready)
        backward = [start + costs.forward for start, costs in zip(forward, self.seconds, strict=True)]
        for hop in self._down:
            ready = backward[hop.source] + self.seconds[hop.source].backward + hop.whole
            backward[hop.target] = max(backward[hop.target], ready)
        return forward, backward

    def _compute_tails(self) -> None:
        count = len(self.workers)
        after_backward = [costs.accumulate + end for costs, end in zip(self.seconds, self.ends, strict=True)]
        after_forward = [0.0] * count
        for hop in reversed(self._down):
            reached = hop.whole + self.seconds[hop.target].backward + after_backward[hop.target]
            after_backward[hop.source] = max(after_backward[hop.source], reached)
        for segment in range(count):
            after_forward[segment] = self.seconds[segment].backward + after_backward[segment]
        for hop in reversed(self._up):
            reached = hop.whole + self.seconds[hop.target].forward + after_forward[hop.target]
            after_forward[hop.source] = max(after_forward[hop.source], reached)
        self._after_forward, self._after_backward = after_forward, after_backward

    def _hop(self, source: int, target: int, size: int, floats: Codable, gradient: bool) -> _Hop:
        a, b = self.workers[source], self.workers[target]
        costs = self.costs
        if costs.is_near(a, b):
            return _Hop(source, target, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        wire = costs.wire_bytes(a, b, size, floats)
        encode, decode = costs.codec_seconds(a, b, floats, gradient)
        latency, up_rate, down_rate = costs.seconds_away(a, b), costs.up(a), costs.down(b)
        link = wire / costs.rate(a, b)
        up = wire / up_rate if up_rate else 0.0
        down = wire / down_rate if down_rate else 0.0
        whole = encode + max(link, up, down) + latency + decode
        return _Hop(source, target, whole, encode, decode, latency, link, up, down)

    def _collect_work(self) -> None:
        for segment, worker in enumerate(self.workers):
            costs = self.seconds[segment]
            device = self.works.setdefault(("device", worker, worker), [])
            start = self._backward[segment]
            device.append(_Work(costs.forward, self._forward[segment], self._after_forward[segment]))
            device.append(_Work(costs.backward, start, self._after_backward[segment]))
            if costs.accumulate:
                device.append(_Work(costs.accumulate, start + costs.backward, self.ends[segment]))
        for hop in self._up:
            head = self._forward[hop.source] + self.seconds[hop.source].forward
            tail = self.seconds[hop.target].forward + self._after_forward[hop.target]
            self._add_hop(hop, head, tail)
        for hop in self._down:
            head = self._backward[hop.source] + self.seconds[hop.source].backward
            tail = self.seconds[hop.target].backward + self._after_backward[hop.target]
            self._add_hop(hop, head, tail)

    def _add_hop(self, hop: _Hop, head: float, tail: float) -> None:
        if not hop.whole:
            return
        a, b = self.workers[hop.source], self.workers[hop.target]
        if hop.encode or hop.decode:
            self._add("coder", a, a, _Work(hop.encode, head, tail + hop.whole - hop.encode))
            self._add("coder", b, b, _Work(hop.decode, head + hop.whole - hop.decode, tail))
        head, tail = head + hop.encode, tail + hop.latency + hop.decode
        self._add("link", a, b, _Work(hop.link, head, tail))
        if hop.up:
            self._add("up", a, a, _Work(hop.up, head, tail))
        if hop.down:
            self._add("down", b, b, _Work(hop.down, head, tail))

    def _add(self, kind: str, worker: int, other: int, work: _Work) -> None:
        self.works.setdefault((kind, worker, other), []).append(work)

    def _round_trip(self, source: int) -> float:
        """Seconds from the admission of a microbatch at `source` until there is room for another."""
        return self._round_trip_seconds(source) + self.seconds[source].accumulate

    def _round_trip_seconds(self, source: int) -> float:
        """Seconds from the admission of a microbatch at `source` to the end of its backward pass there."""
        begins = [0.0 if segment == source else -_NEVER for segment in range(len(self.workers))]
        return self._starts(begins)[1][source] + self.seconds[source].backward

    def _around(self, source: int) -> float:
        """Seconds of a step with a single microbatch, as far as they concern `source`."""
        return self._forward[source] + self._round_trip_seconds(source) + self._after_backward[source]
