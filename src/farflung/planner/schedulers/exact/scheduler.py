"""The exact scheduler: for few workers, a step time that is proven to be near the minimum.

Dynamic programming (`subsets.py`) covers every ordered subset of the workers and every cut, for one limit on
the step at a time. A limit that no plan meets is a certificate, which one pass verifies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError
from farflung.planner.answer import answer
from farflung.planner.assignment import Assignment, Options, Schedule, memory_by_worker
from farflung.planner.checks import Fleet, refuse_memory, usable_fleet
from farflung.planner.cutting.positions import Positions
from farflung.planner.cutting.ties import loops, positions_within_ties
from farflung.planner.devices import Devices
from farflung.planner.schedulers.exact.subsets import Case, Path, Subsets
from farflung.planner.schedulers.opfence import opfence_plus
from farflung.plans import Topology
from farflung.workload import Workload

MOST_WORKERS = 10
MOST_POSITIONS = 256
PRECISION = 1e-3
SIMULATED = 40
"""Additional plans to simulate for each window that could be better than the best known plan."""
MOST_MOVES = 200
REACH = 3


def exact(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The best plan, as simulated, among those with the least lower bounds, and the least lower bound.

    `lower_bound_seconds` is certified: no plan with one segment on each worker and one replica has a shorter
    simulated step, with any window (unless the options fix one). It is the minimum, within `PRECISION`, of a
    bound on every plan (`subsets.Subsets`). So the returned plan's step can be above it, and another plan can
    be as good or better. If tied parameters allow loops, with two segments on one worker, nothing is proven
    and the bound is 0.

    Raises
    ------
    PlanError
        See `usable_fleet`; or there are too many workers or positions for this scheduler.
    """
    fleet = usable_fleet(topology, workload, options)
    legal = positions_within_ties(workload)
    _require_small(len(fleet.devices), int(legal.sum()))
    plans = _baseline(topology, workload, options)
    high = min((plan.step_seconds for plan in plans), default=np.inf)
    bound = np.inf
    positions = Positions.of(workload, legal=legal)
    for window in _windows(workload, options):
        case = _case(fleet, positions, window, options)
        tables = Subsets(case)
        found, least = _least(tables, case, min(high, bound))
        bound = min(bound, least)
        if found:
            found += tables.near(min(high, tables.bound(found[0])), SIMULATED)
        assignments = dict.fromkeys(_assignment(case, path) for path in found)
        plans += [answer("exact", fleet, workload, each, options) for each in assignments]
    if not plans:
        raise refuse_memory(workload, fleet.devices, 1, options)
    best = min(plans, key=lambda plan: plan.step_seconds)
    best, tried = _polished(best, fleet, legal, options)
    proven = 0.0 if loops(workload, 1) else min(bound, best.step_seconds)
    return replace(best, scheduler="exact", lower_bound_seconds=proven, evaluated=len(plans) + tried)


def _require_small(workers: int, positions: int) -> None:
    if workers > MOST_WORKERS or positions > MOST_POSITIONS:
        raise PlanError(
            f"the exact scheduler is for up to {MOST_WORKERS} workers and {MOST_POSITIONS} places to cut, "
            f"found {workers} and {positions}: use --scheduler auto"
        )


def _baseline(topology: Topology, workload: Workload, options: Options) -> list[Schedule]:
    """An initial plan; limits above its step time need not be tried."""
    try:
        return [opfence_plus(topology, workload, options)]
    except PlanError:
        return []


def _windows(workload: Workload, options: Options) -> list[int]:
    """For each possible number of rounds of a step, the window that needs the least memory."""
    if options.window is not None:
        return [options.window]
    count = workload.microbatches
    return sorted({-(-count // rounds) for rounds in range(1, count + 1)}, reverse=True)


def _case(fleet: Fleet, positions: Positions, window: int, options: Options) -> Case:
    latency = fleet.devices.latency
    home = fleet.topology.ids.index(fleet.topology.home.id)
    return Case(
        positions=positions,
        devices=fleet.devices,
        window=window,
        around=latency[home] + latency[:, home],
        sizes=(fleet.count or 1, fleet.count or len(fleet.devices)),
        recompute=options.recompute,
    )


def _least(tables: Subsets, case: Case, high: float) -> tuple[list[Path], float]:
    """Plans with decreasing bounds, and a lower limit of all plans' bounds (`high` if there is no plan)."""
    path = tables.within(high * (1 - PRECISION))
    if path is None:
        return [], high * (1 - PRECISION)
    found = [path]
    low = case.microbatches * float(case.positions.work[-1] / case.devices.speeds.sum())
    high = min(high, tables.bound(path))
    while high > low * (1 + PRECISION):
        path = tables.within((low + high) / 2)
        if path is None:
            low = (low + high) / 2
        else:
            high = min((low + high) / 2, tables.bound(path))
            found.append(path)
    return found, low


def _polished(
    plan: Schedule, fleet: Fleet, legal: NDArray[np.bool_], options: Options
) -> tuple[Schedule, int]:
    """The plan after all moves of single cuts that shorten its simulated step, and the number of simulations.

    Loops are not changed.
    """
    places, tried = np.flatnonzero(legal).tolist(), 0
    moved = set(plan.assignment.cuts) <= set(places)
    while moved:
        moved = False
        for cuts in _moves(plan.assignment.cuts, places):
            other = replace(plan.assignment, cuts=cuts)
            if tried < MOST_MOVES and _fits(plan.workload, other, fleet.devices):
                tried += 1
                found = answer(plan.scheduler, fleet, plan.workload, other, options)
                if found.step_seconds < plan.step_seconds:
                    plan, moved = found, True
                    break
    return plan, tried


def _moves(cuts: tuple[int, ...], places: list[int]) -> Iterator[tuple[int, ...]]:
    """Move each cut to each of the next places before and after it."""
    for number, cut in enumerate(cuts):
        at = places.index(cut)
        for place in (*places[max(0, at - REACH) : at], *places[at + 1 : at + 1 + REACH]):
            moved = (*cuts[:number], place, *cuts[number + 1 :])
            if all(a < b for a, b in pairwise((0, *moved, places[-1]))):
                yield moved


def _fits(workload: Workload, assignment: Assignment, devices: Devices) -> bool:
    owned = workload.owned
    ranges = assignment.ranges(len(workload))
    room = dict(zip(devices.ids, devices.memory_bytes.tolist(), strict=True))
    return all(owned[start] < owned[stop] for start, stop in ranges) and all(
        size <= room[worker] for worker, size in memory_by_worker(workload, assignment).items()
    )


def _assignment(case: Case, path: Path) -> Assignment:
    workload = case.positions.workload
    window = case.window
    edges = [0, *(int(case.positions.at[stop]) for stop in path.stops)]
    recompute = tuple(
        workload.memory_bytes(start, stop, window) > case.devices.memory_bytes[device]
        for device, start, stop in zip(path.devices, edges, edges[1:], strict=False)
    )
    return Assignment(
        cuts=tuple(edges[1:-1]),
        workers=tuple((case.devices.ids[device],) for device in path.devices),
        microbatches=workload.microbatches,
        window=window,
        recompute=recompute if any(recompute) else (),
    )
