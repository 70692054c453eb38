"""DT-FM's scheduler (arXiv 2206.01288) as plans: all workers in a grid, which its search finds, equal stages.

From the paper: a model is cut into stages of equal work, each of which runs on as many replicas; all workers
fill this grid of stages x replicas, and the search looks for the one that communicates least (`GridObjective`
has the published cost). Speeds of devices count for nothing. What the paper leaves open is ours:

* Replicas are as many as the options allow (`Options.most_replicas`; DT-FM is told their number).
* Workers that do not fill the grid are left out, the last first; and whole stages where some worker has too
  little memory for any.
* Cut bytes are those that a typical cut of the model has, and the cut is that of the baselines, so it gives
  way where memory is short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from farflung.errors import PlanError
from farflung.planner.answer import answer, assignment_of
from farflung.planner.assignment import Assignment, Options, Schedule
from farflung.planner.checks import Fleet, most_segments, usable_fleet
from farflung.planner.cutting.chain import ChainCut
from farflung.planner.devices import Devices
from farflung.planner.objective.window import with_window
from farflung.planner.schedulers.baselines import MOST_SKIPS, even_cut
from farflung.planner.schedulers.evolutionary.grid import GridObjective
from farflung.planner.schedulers.evolutionary.search import EVALUATIONS, MOST_SECONDS, evolve_grid
from farflung.plans import Topology, subtopology
from farflung.workload import Workload


@dataclass(frozen=True)
class _Rows:
    """Stages in order, each with the numbers of its workers, one a pipeline; and how they were found."""

    workers: tuple[tuple[int, ...], ...]
    evaluated: int = 0
    capped: bool = False


def evolutionary(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Stages of equal work on the grid that DT-FM's search finds with up to `options.budget` partitions.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no such cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    rows = _rows(fleet, workload, options)
    stages = _stages(fleet.devices, rows)
    chains = [(stages, 0)] if fleet.count else [(stages, 0), (stages, MOST_SKIPS)]
    chain, cut, window = even_cut(workload, workload, chains, options)
    assignment = with_window(
        workload, _assignment(fleet, rows, chain, cut, workload, window), fleet.topology, options
    )
    found = answer("evolutionary", fleet, workload, assignment, options)
    return replace(found, evaluated=max(1, rows.evaluated), capped=rows.capped)


def _rows(fleet: Fleet, workload: Workload, options: Options) -> _Rows:
    count, replicas = _shape(fleet, workload, options)
    shape = GridObjective(
        stages=count,
        replicas=replicas,
        gradient_gb=float(workload.trainable_bytes.sum()) / count / 1e9,
        activation_gb=_typical_cut(workload) * workload.microbatches / replicas / 1e9,
    )
    found = evolve_grid(
        subtopology(fleet.topology, list(range(count * replicas))),
        shape,
        options.seed,
        min(options.budget, EVALUATIONS) if replicas > 1 else 1,  # there is one partition into single workers
        MOST_SECONDS if options.seconds is None else options.seconds,
    )
    return _Rows(found.grid, found.evaluations, found.capped)


def _shape(fleet: Fleet, workload: Workload, options: Options) -> tuple[int, int]:
    """Stages, and as many replicas as may be; all workers that were asked for fill the grid."""
    most, workers = most_segments(workload, workload.legal), fleet.count or len(fleet.devices)
    for replicas in range(min(options.most_replicas, workers, workload.microbatches), 0, -1):
        stages = workers // replicas
        if fleet.count is None:
            return min(stages, most), replicas
        if stages <= most and stages * replicas == workers:
            return stages, replicas
    raise PlanError(
        f"{workers} workers fill no grid of at most {most} stages and {options.most_replicas} replicas: "
        "ask for another number (--workers)"
    )


def _typical_cut(workload: Workload) -> float:
    """Bytes that cross a cut in the median, of those where something does."""
    crossing = workload.crossing_forward[workload.legal & (workload.crossing_forward > 0)]
    return float(np.median(crossing)) if len(crossing) else 0.0


def _stages(devices: Devices, rows: _Rows) -> Devices:
    """One device for each stage: as much memory as its replica with the least."""
    first = devices.take([row[0] for row in rows.workers])
    least = np.array([devices.memory_bytes[list(row)].min() for row in rows.workers])
    return replace(first, memory_bytes=least)


def _assignment(
    fleet: Fleet, rows: _Rows, stages: Devices, cut: ChainCut, workload: Workload, window: int
) -> Assignment:
    """What `stages`, in the order of the rows, run; each with all workers of its row."""
    replicas = len(rows.workers[0])
    one = assignment_of(workload, stages, cut, window)
    if replicas == 1:
        return one
    ids = fleet.devices.ids
    each, more = divmod(workload.microbatches, replicas)
    return replace(
        one,
        workers=tuple(tuple(ids[at] for at in rows.workers[number]) for number in cut.devices),
        shares=tuple(each + (number < more) for number in range(replicas)),
    )
