"""Plans without measurements, for `check`, `capture` and a broker without a topology.

The speed of links relative to devices is unknown, so all devices count as equal, and so do all links. The cut
minimises the larger of two ratios: its largest work to the least possible one, and its largest crossing to
the mean of the cheapest cut in which no segment has more than `UNBALANCED` times that work. So a block is cut
inside only if that improves the balance by more than it costs in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farflung.errors import PlanError
from farflung.opdag.graph import Graph
from farflung.planner.assignment import Assignment
from farflung.planner.checks import refuse_ties, require_segments
from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.devices import Devices
from farflung.planner.memoize import once
from farflung.planner.placing import PlannedJob, place
from farflung.workload import Workload, workload_of

UNBALANCED = 1.5

NEGLIGIBLE = 1e-3
"""The largest crossing's time relative to a segment's, if links only break ties."""


def plan_job(
    graph: Graph,
    microbatches: int,
    microbatch_size: int,
    workers: Sequence[str],
    *,
    exactly: bool = True,
    recompute: bool = False,
) -> PlannedJob:
    """Plan a graph as `plan_graph` does; unless `exactly`, on fewer workers if necessary.

    Raises
    ------
    PlanError
        No cut of the graph fits this number of workers.
    """
    for count in range(len(workers), 0, -1):
        try:
            return plan_graph(graph, microbatches, microbatch_size, workers[:count], recompute)
        except PlanError:
            if exactly or count == 1:
                raise
    raise PlanError("a plan needs at least one worker, found none: start one with `farflung join`")


def plan_graph(
    graph: Graph,
    microbatches: int,
    microbatch_size: int,
    workers: Sequence[str],
    recompute: bool = False,
) -> PlannedJob:
    """Plan one contiguous segment for each worker, in order, with all uses of a tied parameter on one worker.

    If a parameter is used at both ends of the graph (a tied embedding and head), the first worker gets both
    end segments, and there is one segment more than workers. With `recompute` every segment recomputes.

    Raises
    ------
    PlanError
        The graph cannot be cut for this number of workers.
    """
    workload = workload_of(graph, microbatches, microbatch_size)
    cut = balanced_cut(workload, len(workers))
    assignment = Assignment(
        cuts=cut.cuts,
        workers=tuple((workers[number],) for number in cut.devices),
        microbatches=microbatches,
        window=min(microbatches, 2 * len(cut.devices)),
        recompute=(recompute,) * len(cut.devices),
    )
    return place(graph, assignment, microbatch_size)


@once
def balanced_cut(workload: Workload, count: int) -> ChainCut:
    """The cut for `count` equal devices with equal links; the module's docstring has the criterion.

    Raises
    ------
    PlanError
        The workload cannot be cut for this number of devices.
    """
    require_segments(workload, count)
    cutter = Cutter(workload, window=None)
    free = indifferent(_equal(count, 1.0, 1.0), workload)
    work, cheap = cutter.cut(free), cutter.cut(free, slacks=(UNBALANCED - 1,))
    if work is None or cheap is None:
        raise refuse_ties(workload, count)
    crossing = workload.crossing_forward[list(cheap.cuts)].sum() / max(count - 1, 1)
    cut = cutter.cut(_equal(count, work.bottleneck_seconds or 1.0, crossing or 1.0), even=True)
    assert cut is not None
    return cut


def indifferent(devices: Devices, workload: Workload) -> Devices:
    """The same devices with equal speeds and links that only break ties; memory is unchanged."""
    count = len(devices)
    share = max(workload.work[-1] / count, 1.0)
    rate = workload.crossing_forward.max() / (NEGLIGIBLE * share) + 1.0
    return replace(
        devices,
        speeds=np.ones(count),
        bandwidth=np.where(devices.bandwidth > 0, rate, 0.0),
        latency=np.zeros((count, count)),
        up=np.full(count, np.inf),
        down=np.full(count, np.inf),
    )


def _equal(count: int, speed: float, bandwidth: float) -> Devices:
    """Equal devices with equal links to each other and unlimited memory."""
    between = np.full((count, count), bandwidth)
    np.fill_diagonal(between, np.inf)
    boundless = np.full(count, np.inf)
    return Devices(
        ids=tuple(str(number) for number in range(count)),
        speeds=np.full(count, speed),
        memory_bytes=boundless,
        bandwidth=between,
        latency=np.zeros((count, count)),
        up=boundless,
        down=boundless,
    )
