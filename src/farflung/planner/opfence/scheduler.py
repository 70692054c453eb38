"""OP-Fence, the scheduler of FusionLLM (arXiv 2410.12707), as far as it could be read.

From the paper: devices with similar bandwidths to one another are clustered on the bandwidth graph, the
OP-DAG is partitioned so that a cluster holds a contiguous part of it, and what the slowest device or link is
busy with each microbatch is made small, under limits on memory. Only abstract and excerpts could be read, so
what follows is ours:

* the clusters: Louvain's communities, refined (`communities.py`); the paper's method is not certain;
* the order of clusters and of devices in them: the cheapest path for one cut's bytes (`fence.py`), in either
  direction; the paper's rule is not known;
* the cut: exact, and the best there is for this order (`chain.py`), which also leaves devices out where that
  makes the bottleneck smaller. The paper's own partition cannot be better for the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from farflung.plan import Topology
from farflung.planner.answer import answer, assignment_of
from farflung.planner.assignment import Options, Schedule
from farflung.planner.baselines.even_shares import windows
from farflung.planner.checks import Fleet, refuse_memory, usable_fleet
from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.devices import Devices
from farflung.planner.objective.window import with_window
from farflung.planner.opfence.communities import communities
from farflung.planner.opfence.fence import fenced_order
from farflung.workload import Workload

MOST_SKIPS = 16
"""Devices in a row that the cut may leave out between two others; whole communities at the ends."""

MOST_BEGINNINGS = 8


def opfence(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Contiguous segments along the communities of a fleet, with the least bottleneck for that order.

    Where a number of workers is asked for, they are that many neighbours in the order: those with the least
    bottleneck. The window is as wide as memory allows without cuts that make the step longer.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no such cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    chains = list(_chains(fleet, workload, options))
    skips = 0 if fleet.count else min(len(fleet.devices), MOST_SKIPS)
    best: tuple[Devices, ChainCut, int] | None = None
    for window in windows(workload, options, len(chains[0])):
        found = _best(Cutter(workload, window, options.recompute), chains, skips)
        if found is None:
            continue
        if best is not None and _seconds(workload, *best) <= _seconds(workload, *found, window):
            break
        best = *found, window
    if best is None:
        raise refuse_memory(workload, chains[0], skips, options)
    assignment = with_window(workload, assignment_of(workload, *best), fleet.topology, options)
    return answer("op-fence", fleet, workload, assignment, options)


def _seconds(workload: Workload, _: Devices, cut: ChainCut, window: int) -> float:
    """A step's time by the closed form of one bottleneck, and by the rounds of the window."""
    rounds = -(-workload.microbatches // window)
    return max(cut.step_seconds(workload.microbatches), rounds * cut.fill_seconds)


def _chains(fleet: Fleet, workload: Workload, options: Options) -> Iterator[Devices]:
    """Every run of as many neighbours in the order as may be used, in both directions.

    A loop begins with the first of a run, so for tied parameters runs without the first communities count
    too.
    """
    found = communities(fleet.topology, options.seed)
    order = fenced_order(fleet.devices, found, _typical_cut(workload))
    for way in (order, order[::-1]) if len(order) > 1 else (order,):
        if fleet.count:
            runs = [way[at : at + fleet.count] for at in range(len(way) - fleet.count + 1)]
        else:
            runs = [way[at:] for at in _beginnings(way, found) if at == 0 or workload.ties]
        for run in runs:
            yield fleet.devices.take(run)


def _beginnings(order: list[int], found: Sequence[Sequence[int]]) -> list[int]:
    """Where communities begin in an order, but for those after the `MOST_BEGINNINGS` first."""
    community = {number: index for index, members in enumerate(found) for number in members}
    changes = (at for at in range(1, len(order)) if community[order[at - 1]] != community[order[at]])
    return [0, *islice(changes, MOST_BEGINNINGS - 1)]


def _typical_cut(workload: Workload) -> tuple[float, float]:
    """Bytes of a cut between blocks: what the cheapest fourth of the positions with any do not exceed."""
    both = [
        crossing[workload.legal & (crossing > 0)]
        for crossing in (workload.crossing_forward, workload.crossing_backward)
    ]
    forward, backward = (float(np.quantile(c, 0.25)) if len(c) else 0.0 for c in both)
    return forward, backward


def _best(cutter: Cutter, chains: list[Devices], skips: int) -> tuple[Devices, ChainCut] | None:
    best: tuple[Devices, ChainCut] | None = None
    for chain in chains:
        below = best[1].bottleneck_seconds if best else np.inf
        cut = cutter.cut(chain, skips, below=below)
        if cut is not None:
            best = chain, cut
    return best
