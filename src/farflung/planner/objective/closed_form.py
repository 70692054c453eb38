"""The time of a step in closed form: a lower bound from every resource that a plan uses.

If the simulator (like the runtime) splits backward passes, gradients of received values are computed first
and sent at once, and gradients of parameters delay no other worker.

Every resource r works M times in a step, which takes head_r + M busy_r + tail_r: the head is the least time
before its first work and the tail the least after its last, both on the path of one microbatch by itself. The
window gives one more term: a source cannot admit microbatch m before m - W is back. Each term is a lower
bound on the simulated time, and can only fall if a device or a link gets faster; so does their maximum.
DESIGN: iteration time is fill + (M - 1) x the bottleneck + synchronisation + commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from farflung.planner.objective.alone import Alone
from farflung.plans import Plan, Topology
from farflung.simulator import Conditions
from farflung.simulator.costs import LinkCosts, PipelineCosts, pieces_of, pipelines_of, throughput_seconds
from farflung.workload import BACKWARD_FACTOR

_WHOLE = 1 + BACKWARD_FACTOR
_WEIGHTS = BACKWARD_FACTOR - 1  # gradients of parameters: about as much as a forward pass

FORWARD = 1 / _WHOLE
"""The fraction of a segment's work that is its forward pass."""


def round_trip_share(split_backward: bool = Conditions().split_backward) -> float:
    """The fraction of a segment's work on a microbatch's round trip: up to sending its gradients."""
    return (_WHOLE - _WEIGHTS) / _WHOLE if split_backward else 1.0


_DEFAULT = Conditions()


def step_seconds(plan: Plan, topology: Topology, conditions: Conditions = _DEFAULT) -> float:
    """A lower bound on the seconds of a step, in time linear in the plan's segments and edges.

    Raises
    ------
    PlanError
        See `simulator.simulate`.
    """
    costs, pipelines = LinkCosts(plan, topology, conditions), pipelines_of(plan, topology, conditions)
    all_ends = _ends(plan, pipelines, costs, conditions)
    begins = _begins(pipelines, costs, conditions)
    best = max(max(ends) for ends in all_ends)
    for one, ends in zip(pipelines, all_ends, strict=True):
        if one.microbatches:
            alone = Alone(one.workers, one.seconds, one.transfers, costs, begins, ends)
            best = max(best, alone.bound(one.microbatches, one.window))
    earliest_begin, earliest_end = min(begins.values(), default=0.0), min(min(ends) for ends in all_ends)
    best = max(best, earliest_begin + _machine_seconds(topology, pipelines) + earliest_end)
    return max(best, throughput_seconds(pipelines, costs))


def _machine_seconds(topology: Topology, pipelines: Sequence[PipelineCosts]) -> float:
    """Seconds of a step that workers with shared cores need, if all cores are always busy."""
    machines = topology.machines()
    if not machines:
        return 0.0
    busy: dict[int, float] = defaultdict(float)
    for one in pipelines:
        for seconds, worker in zip(one.seconds, one.workers, strict=True):
            busy[worker] += one.microbatches * (seconds.forward + seconds.backward + seconds.accumulate)
    return max(
        sum(busy[worker] for worker in numbers) / (topology.workers[numbers[0]].cores or 1)
        for numbers in machines.values()
    )


def sync_seconds(workers: Sequence[int], gradient_bytes: float, costs: LinkCosts) -> float:
    """The time for these workers to add up the gradients of a piece; see `simulator.simulate`."""
    return max(
        sum(
            part.coding_seconds
            + costs.seconds_away(worker, part.target)
            + part.bytes / costs.most(worker, part.target)
            for part in parts
        )
        for worker, parts in zip(workers, costs.sum_messages(workers, gradient_bytes), strict=True)
    )


def _ends(
    plan: Plan, pipelines: Sequence[PipelineCosts], costs: LinkCosts, conditions: Conditions
) -> list[list[float]]:
    """For each pipeline's segments, the least time from the last accumulation to the end of the step."""

    def away(workers: Sequence[int]) -> float:
        return max(costs.seconds_away(worker, costs.home) for worker in workers) if conditions.commit else 0.0

    ends = [[away([worker]) for worker in one.workers] for one in pipelines]
    for piece in pieces_of(plan):
        workers = [one.workers[segment] for one, segment in zip(pipelines, piece.holders, strict=True)]
        least = sync_seconds(workers, piece.gradient_bytes, costs) / plan.inner_steps + away(workers)
        for own, segment in zip(ends, piece.holders, strict=True):
            own[segment] = max(own[segment], least)
    return ends


def _begins(pipelines: Sequence[PipelineCosts], costs: LinkCosts, conditions: Conditions) -> dict[int, float]:
    """For each worker, when it begins."""
    rate = conditions.update_bytes_per_second
    return {
        worker: (costs.seconds_away(costs.home, worker) if conditions.commit else 0.0)
        + (size / rate if rate else 0.0)
        for one in pipelines
        for worker, size in one.owned_bytes.items()
    }
