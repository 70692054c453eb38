"""The time of a step in closed form: what no resource of a plan can undercut.

Every resource r must work M times for each step: head_r + M busy_r + tail_r, where the head is the least time
before its first work and the tail the least after its last, both on the path of one microbatch that is alone.
The window gives one term more: a source cannot admit microbatch m before m - W is back. Each term is a true
lower bound on what `simulate` finds and falls, if at all, when a device or a link gets faster; so does their
maximum. DESIGN: iteration time is fill + (M - 1) x the bottleneck + synchronisation + commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from farflung.plan import FEEDER, Plan, Topology
from farflung.simulator import Conditions
from farflung.simulator.costs import (
    Route,
    TaskSeconds,
    numbers_of,
    routes_of,
    task_seconds,
    throughput_seconds,
)
from farflung.simulator.link_costs import LinkCosts

_DEFAULT = Conditions()
_NEVER = float("inf")


def step_seconds(plan: Plan, topology: Topology, conditions: Conditions = _DEFAULT) -> float:
    """A lower bound on the seconds of a step, in time linear in the plan's segments and edges.

    Raises
    ------
    PlanError
        See `simulator.simulate`.
    """
    replicas = numbers_of(plan, topology)
    costs = LinkCosts(plan, topology, conditions)
    routes = routes_of(plan.edges)
    ends = _ends(plan, replicas, costs, conditions)
    begins = _begins(plan, replicas, costs, conditions)
    tflops = [worker.tflops for worker in topology.workers]
    best = max(ends)
    for workers, (_, share) in zip(replicas, plan.pipelines(), strict=True):
        if share:
            seconds = [
                task_seconds(placement, tflops[worker], conditions)
                for placement, worker in zip(plan.placements, workers, strict=True)
            ]
            alone = _Alone(workers, seconds, routes, costs, begins, ends)
            best = max(best, alone.bound(share, conditions.window or plan.window))
    return max(best, throughput_seconds(plan, replicas, routes, costs))


def sync_seconds(workers: Sequence[int], gradient_bytes: float, costs: LinkCosts) -> float:
    """DT-FM's time for the replicas of a segment to add up gradients: see `simulator.sync`."""
    count = len(workers)
    return max(
        sum(
            2 * (costs.seconds_away(a, b) + gradient_bytes / (count * costs.most(a, b)))
            for b in workers
            if b != a
        )
        for a in workers
    )


def _ends(plan: Plan, replicas: list[list[int]], costs: LinkCosts, conditions: Conditions) -> list[float]:
    """For each segment, the least time from its last backward pass to the end of the step."""
    found = []
    for placement in plan.placements:
        workers = [replica[placement.segment] for replica in replicas]
        away = max(costs.seconds_away(worker, costs.home) for worker in workers) if conditions.commit else 0.0
        sync = sync_seconds(workers, placement.parameter_bytes, costs) if len(workers) > 1 else 0.0
        found.append(sync + away)
    return found


def _begins(
    plan: Plan, replicas: list[list[int]], costs: LinkCosts, conditions: Conditions
) -> dict[int, float]:
    """For each worker, when it begins."""
    owned: dict[int, int] = defaultdict(int)
    for workers in replicas:
        for placement, worker in zip(plan.placements, workers, strict=True):
            owned[worker] += placement.parameter_bytes
    rate = conditions.update_bytes_per_second
    return {
        worker: (costs.seconds_away(costs.home, worker) if conditions.commit else 0.0)
        + (size / rate if rate else 0.0)
        for worker, size in owned.items()
    }


@dataclass(slots=True)
class _Resource:
    """What a step asks of a device, codec thread, link or line for each microbatch."""

    busy: float = 0.0
    head: float = _NEVER
    tail: float = _NEVER

    def asked(self, seconds: float, head: float, tail: float) -> None:
        """It works `seconds`, no earlier than `head` after the step began and `tail` before it ends."""
        self.busy += seconds
        self.head = min(self.head, head)
        self.tail = min(self.tail, tail)


@dataclass(slots=True)
class _Hop:
    """A message between two segments: seconds of its parts."""

    source: int
    target: int
    encode: float
    transfer: float
    latency: float
    decode: float
    wire_bytes: float

    @property
    def whole(self) -> float:
        return self.encode + self.transfer + self.latency + self.decode


@dataclass
class _Alone:
    """One microbatch that has all of a replica for itself: when everything could begin at the earliest."""

    workers: Sequence[int]
    seconds: Sequence[TaskSeconds]
    routes: Sequence[Route]
    costs: LinkCosts
    begins: dict[int, float]
    ends: list[float]
    resources: dict[object, _Resource] = field(default_factory=dict)

    def bound(self, microbatches: int, window: int) -> float:
        """The largest term for so many microbatches."""
        self._paths()
        self._gather()
        terms = [r.head + microbatches * r.busy + r.tail for r in self.resources.values()]
        rounds = -(-microbatches // window)
        terms += [self._round_trip(source) * rounds + self._around(source) for source in self._sources]
        return max(terms)

    def _paths(self) -> None:
        inner = [route for route in self.routes if route.source != FEEDER]
        self._up = [self._hop(r.source, r.target, r.forward_bytes) for r in inner]
        self._down = [self._hop(r.target, r.source, r.backward_bytes) for r in inner]
        self._up.sort(key=lambda hop: hop.source)
        self._down.sort(key=lambda hop: -hop.source)
        self._sources = sorted(set(range(len(self.workers))) - {hop.target for hop in self._up})
        self._forward, self._backward = self._starts([self.begins[worker] for worker in self.workers])
        self._follow()

    def _starts(self, begins: list[float]) -> tuple[list[float], list[float]]:
        """The earliest starts of all forward and backward passes, no forward pass before its `begins`."""
        forward = list(begins)
        for hop in self._up:
            ready = forward[hop.source] + self.seconds[hop.source].forward + hop.whole
            forward[hop.target] = max(forward[hop.target], ready)
        backward = [start + costs.forward for start, costs in zip(forward, self.seconds, strict=True)]
        for hop in self._down:
            ready = backward[hop.source] + self._sent(hop.source) + hop.whole
            backward[hop.target] = max(backward[hop.target], ready)
        return forward, backward

    def _follow(self) -> None:
        count = len(self.workers)
        after_backward, after_forward = list(self.ends), [0.0] * count
        for hop in reversed(self._down):
            reached = hop.whole + self.seconds[hop.target].backward + after_backward[hop.target]
            late = reached - self.seconds[hop.source].early
            after_backward[hop.source] = max(after_backward[hop.source], late)
        for segment in range(count):
            after_forward[segment] = self.seconds[segment].backward + after_backward[segment]
        for hop in reversed(self._up):
            reached = hop.whole + self.seconds[hop.target].forward + after_forward[hop.target]
            after_forward[hop.source] = max(after_forward[hop.source], reached)
        self._after_forward, self._after_backward = after_forward, after_backward

    def _hop(self, source: int, target: int, size: int) -> _Hop:
        a, b = self.workers[source], self.workers[target]
        if self.costs.is_near(a, b):
            return _Hop(source, target, 0.0, 0.0, 0.0, 0.0, 0.0)
        wire = size / self.costs.ratio(a, b)
        encode, decode = self.costs.codec_seconds(a, b, size)
        transfer = wire / self.costs.most(a, b)
        return _Hop(source, target, encode, transfer, self.costs.seconds_away(a, b), decode, wire)

    def _sent(self, segment: int) -> float:
        return self.seconds[segment].backward - self.seconds[segment].early

    def _gather(self) -> None:
        for segment, worker in enumerate(self.workers):
            device = self._resource("device", worker)
            costs = self.seconds[segment]
            device.asked(costs.forward, self._forward[segment], self._after_forward[segment])
            device.asked(costs.backward, self._backward[segment], self._after_backward[segment])
        for hop in self._up:
            head = self._forward[hop.source] + self.seconds[hop.source].forward
            tail = self.seconds[hop.target].forward + self._after_forward[hop.target]
            self._ask_links(hop, head, tail)
        for hop in self._down:
            head = self._backward[hop.source] + self._sent(hop.source)
            tail = self.seconds[hop.target].backward + self._after_backward[hop.target]
            self._ask_links(hop, head, tail)

    def _ask_links(self, hop: _Hop, head: float, tail: float) -> None:
        a, b = self.workers[hop.source], self.workers[hop.target]
        if hop.encode or hop.decode:
            self._resource("coder", a).asked(hop.encode, head, tail + hop.whole - hop.encode)
            self._resource("coder", b).asked(hop.decode, head + hop.whole - hop.decode, tail)
        if not hop.wire_bytes:
            return
        head, tail = head + hop.encode, tail + hop.latency + hop.decode
        self._resource("link", a, b).asked(hop.wire_bytes / self.costs.rate(a, b), head, tail)
        for kind, worker, rate in (("up", a, self.costs.up(a)), ("down", b, self.costs.down(b))):
            if rate is not None:
                self._resource(kind, worker).asked(hop.wire_bytes / rate, head, tail)

    def _resource(self, *name: object) -> _Resource:
        return self.resources.setdefault(name, _Resource())

    def _round_trip(self, source: int) -> float:
        """From the admission of a microbatch at `source` to the end of its backward pass there."""
        begins = [0.0 if segment == source else -_NEVER for segment in range(len(self.workers))]
        return self._starts(begins)[1][source] + self.seconds[source].backward

    def _around(self, source: int) -> float:
        return self._forward[source] + self._after_backward[source]
