"""DT-FM's scheduler (arXiv 2206.01288): equal stages on a grid of all workers that its search finds.

From the paper: a model is cut into stages of equal work with the same number of replicas. All workers fill
this grid of stages x replicas, and the search finds the grid with the least communication (`GridObjective`
has the published cost). Speeds of devices do not count. Our choices where the paper is open:

* There are as many replicas as the options allow (`Options.most_replicas`; in DT-FM their number is given).
* Workers that do not fill the grid are left out, the last first; and so are whole stages if some worker has
too
  little memory for any.
* The bytes are those of a typical cut of the model, and the cut is that of the baselines, so it adapts to
  little memory.
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
    """Stages in order, each with one worker number per pipeline, and statistics of the search."""

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
        workload,
        _assignment(fleet, rows, chain, cut, workload, window, options),
        fleet.topology,
        options,
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
        # There is only one partition into single workers.
        min(options.budget, EVALUATIONS) if replicas > 1 else 1,
        MOST_SECONDS if options.seconds is None else options.seconds,
    )
    return _Rows(found.grid, found.evaluations, found.capped)


def _shape(fleet: Fleet, workload: Workload, options: Options) -> tuple[int, int]:
    """Stages and replicas, with as many replicas as possible; all requested workers are used."""
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
    """The median bytes of cuts that any bytes cross."""
    crossing = workload.crossing_forward[workload.legal & (workload.crossing_forward > 0)]
    return float(np.median(crossing)) if len(crossing) else 0.0


def _stages(devices: Devices, rows: _Rows) -> Devices:
    """One device for each stage, with the memory of its smallest replica."""
    first = devices.take([row[0] for row in rows.workers])
    least = np.array([devices.memory_bytes[list(row)].min() for row in rows.workers])
    return replace(first, memory_bytes=least)


def _assignment(
    fleet: Fleet,
    rows: _Rows,
    stages: Devices,
    cut: ChainCut,
    workload: Workload,
    window: int,
    options: Options,
) -> Assignment:
    """The assignment of `stages`, in the order of the rows, each with all workers of its row."""
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
        sum_codec=options.sum_codec,
        inner_steps=options.inner_steps,
    )
