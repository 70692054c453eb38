"""What every plan of every scheduler must keep."""

from __future__ import annotations

import pytest

from farflung.planner.assignment import Schedule, memory_of, plan_of
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import Topology
from farflung.simulator import simulate


def require_valid(schedule: Schedule, topology: Topology) -> None:
    """All nodes placed once in convex segments, memory kept, ties on one worker, the step as simulated."""
    workload, assignment = schedule.workload, schedule.assignment
    ranges = assignment.ranges(len(workload))
    assert [at for start, stop in ranges for at in range(start, stop)] == list(range(len(workload)))
    assert all(workload.legal[at] for at in assignment.cuts)
    assert all(workload.parameters[start:stop].sum() for start, stop in ranges)
    for worker in topology.workers:
        assert memory_of(workload, assignment, worker.id) <= worker.memory_gb * 1e9 * (1 + 1e-9)
    for replica in range(len(assignment.workers[0])):
        for uses in workload.ties:
            segments = [number for number, (a, b) in enumerate(ranges) if any(a <= at < b for at in uses)]
            assert len({assignment.workers[number][replica] for number in segments}) == 1
    assert schedule.plan == plan_of(workload, assignment)
    assert schedule.step_seconds == pytest.approx(simulate(schedule.plan, topology).step_seconds)
    assert schedule.lower_bound_seconds <= schedule.step_seconds * (1 + 1e-6)
    assert step_seconds(schedule.plan, topology) <= schedule.step_seconds * (1 + 1e-6)
