"""The best plan for devices that are all alike, with lines that are all alike.

No order of workers is better than another there, so what is left to choose is how many replicas of how many
stages, the size of a microbatch, the window, recomputation, and the cut. All of these are tried: the cut is
the exact one for lines of several rates, the closed form ranks what comes of it, the simulator judges the
best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from farflung.planner.assignment import Assignment, plan_of
from farflung.planner.codecs.policies import Policy
from farflung.planner.cutting.chain import Cutter
from farflung.planner.devices import Devices
from farflung.planner.objective.closed_form import step_seconds
from farflung.plans import Plan, Topology
from farflung.simulator import Conditions, Simulation, simulate
from farflung.workload import Workload

JUDGED = 2
"""Of the plans that the closed form likes best, how many are simulated."""

SLACKS = (0.0, 0.05, 0.3)


@dataclass(frozen=True)
class Candidate:
    """A plan, and what to say of it."""

    plan: Plan
    replicas: int
    stages: int
    microbatch_size: int
    recompute: bool


@dataclass(frozen=True)
class Found:
    """The best plan with its simulated step."""

    candidate: Candidate
    simulation: Simulation


def candidates(
    workloads: Sequence[Workload], topologies: Sequence[Topology], efficiency: float
) -> list[Candidate]:
    """Plans for all devices, cut for the lines of each of `topologies`, each plan once.

    `workloads` are the same step in microbatches of several sizes, `topologies` the same devices.
    """
    fleets = [Devices.of(topology, efficiency) for topology in topologies]
    count = len(fleets[0])
    found: dict[tuple[object, ...], Candidate] = {}
    for workload in workloads:
        for replicas in (number for number in range(1, count + 1) if count % number == 0):
            for window in _windows(count // replicas, -(-workload.microbatches // replicas)):
                for recompute in (False, True):
                    cutter = Cutter(workload, window, recompute)
                    for devices in fleets:
                        assignment = _assignment(cutter, devices, replicas)
                        if assignment is not None:
                            key = (workload.microbatch_size, assignment)
                            found.setdefault(key, _candidate(workload, assignment, count // replicas))
    return list(found.values())


def _windows(stages: int, share: int) -> list[int]:
    """From as many as there are stages, which leaves no time for links, to all that there are."""
    return sorted({min(share, window) for window in (stages, stages + 8, 2 * stages, 4 * stages)})


def _candidate(workload: Workload, assignment: Assignment, stages: int) -> Candidate:
    return Candidate(
        plan=plan_of(workload, assignment),
        replicas=len(assignment.shares) or 1,
        stages=stages,
        microbatch_size=workload.microbatch_size,
        recompute=any(assignment.recompute),
    )


def best(
    known: Sequence[Candidate], topology: Topology, policy: Policy, conditions: Conditions
) -> Found | None:
    """The candidate whose step is shortest on `topology` with the codecs of `policy`; None without any."""
    compressed = [
        replace(one, plan=msgspec.structs.replace(one.plan, codecs=list(policy(one.plan, topology))))
        for one in known
    ]
    ranked = sorted(compressed, key=lambda one: step_seconds(one.plan, topology, conditions))
    found: Found | None = None
    for one in ranked[:JUDGED]:
        if found and step_seconds(one.plan, topology, conditions) >= found.simulation.step_seconds:
            break  # the closed form is a lower bound
        simulation = simulate(one.plan, topology, conditions)
        if found is None or simulation.step_seconds < found.simulation.step_seconds:
            found = Found(one, simulation)
    return found


def _assignment(cutter: Cutter, devices: Devices, replicas: int) -> Assignment | None:
    """The exact cut for one replica, the same for all of them."""
    microbatches = cutter.workload.microbatches
    stages = len(devices) // replicas
    cut = cutter.cut(devices.take(range(stages)), slacks=SLACKS) if replicas <= microbatches else None
    if cut is None or cutter.window is None:
        return None
    shares = [microbatches // replicas + (number < microbatches % replicas) for number in range(replicas)]
    return Assignment(
        cuts=cut.cuts,
        workers=tuple(
            tuple(devices.ids[replica * stages + device] for replica in range(replicas))
            for device in cut.devices
        ),
        microbatches=microbatches,
        window=cutter.window,
        shares=tuple(shares) if replicas > 1 else (),
        recompute=cut.recompute if any(cut.recompute) else (),
    )
