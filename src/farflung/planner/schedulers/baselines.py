"""FusionLLM's baselines: contiguous segments with equally many operators, or equal FLOPs, for each worker.

Workers keep their order. DT-FM's scheduler also cuts its stages with `even_cut`.

The baselines are those of FusionLLM's evaluation (arXiv 2410.12707). We could not read how the paper breaks
ties, or what it does when memory is short; `even_shares` says what we do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from farflung.planner.answer import answer, assignment_of
from farflung.planner.assignment import Options, Schedule
from farflung.planner.checks import most_segments, refuse_memory, usable_fleet
from farflung.planner.cutting.balanced import indifferent
from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.cutting.positions import FINE
from farflung.planner.devices import Devices
from farflung.planner.memoize import once
from farflung.planner.objective.window import with_window
from farflung.plans import Topology
from farflung.workload import Workload

MOST_SKIPS = 16


def even_shares(
    scheduler: str,
    topology: Topology,
    workload: Workload,
    weighed: Workload,
    options: Options,
    parts: int = FINE,
) -> Schedule:
    """Segments of equal weight (the operations of `weighed`), as far as memory allows.

    Speeds and links do not count. Of several such cuts, it takes the one that the fewest bytes cross. (If a
    model has very many places to cut, weights are equal up to two of `parts`; see `Positions.of`.) By default
    it uses all workers, or the first ones if there are more workers than possible segments; workers that are
    too small for any segment are left out.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no such cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    count = fleet.count or min(len(fleet.devices), most_segments(workload, workload.legal))
    chains = [(fleet.devices.take(range(count)), 0)]
    if fleet.count is None:
        chains.append((fleet.devices, MOST_SKIPS))
    chain, cut, window = even_cut(workload, weighed, chains, options, parts)
    assignment = with_window(workload, assignment_of(workload, chain, cut, window), fleet.topology, options)
    return answer(scheduler, fleet, workload, assignment, options)


def even_cut(
    workload: Workload,
    weighed: Workload,
    chains: Sequence[tuple[Devices, int]],
    options: Options,
    parts: int = FINE,
) -> tuple[Devices, ChainCut, int]:
    """The first chain that can be cut evenly, with its cut and window; each may skip a number of devices.

    Raises
    ------
    PlanError
        No such cut fits any of them.
    """
    first, (_, skips) = chains[0][0], chains[-1]
    for window in windows(workload, options, len(first)):
        cutter = Cutter(weighed, window, options.recompute, parts)
        for chain, most in chains:
            cut = cutter.cut(indifferent(chain, weighed), most)
            if cut is not None:
                return chain, cut, window
    raise refuse_memory(workload, first, skips, options)


def windows(workload: Workload, options: Options, segments: int) -> Iterator[int]:
    """Windows to try: twice the depth of the pipeline, then halved until a cut fits into memory."""
    window = options.window or min(workload.microbatches, 2 * segments)
    yield window
    while window > 1 and options.window is None:
        window //= 2
        yield window


ROUGH = 512
"""Parts of a model for each of which `nearly_equal_count` keeps the cheapest cut."""


def equal_count(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """The same number of operators for each worker, regardless of their cost; see `even_shares`."""
    return _with_parts(topology, workload, options, FINE)


def nearly_equal_count(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Like `equal_count` to within a 256th of the model, in a tenth of the time with 1,500 places to cut.

    For code that plans many times: `equal_count` has to look at every place to cut, because all operators
    count alike, and takes longer than all other schedulers together.
    """
    return _with_parts(topology, workload, options, ROUGH)


def _with_parts(topology: Topology, workload: Workload, options: Options, parts: int) -> Schedule:
    return even_shares("equal-count", topology, workload, _counted(workload), options, parts)


@once
def _counted(workload: Workload) -> Workload:
    return workload.weighing(np.ones(len(workload)))


def equal_compute(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Equal FLOPs for each worker, regardless of its speed and links; see `even_shares`."""
    return even_shares("equal-compute", topology, workload, workload, options)
