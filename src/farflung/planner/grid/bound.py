"""A lower bound on DT-FM's total over all grids.

For a limit t on hop costs, let the links of at most t split the workers into components. Cut the stages at
every hop that costs more than t: within a *run* of stages between cuts each pipeline stays in one
component, so every stage of a run has the same number of workers from each component. Now let nobody's sum
of gradient averages exceed D. What D says of the number of runs:

* (packing) A worker whose stage holds n of its component pays at least its n - 1 cheapest links within it and
  its replicas - n cheapest ones out of it, so D tells how many of its component it needs in its stage. The
  run that holds the neediest worker of a component has as many pipelines in that component: components share
  a run only if their needs fit in the replicas, and a run is no longer than the size of any of them divided
  by its need (by its least need, in a run without anybody's neediest). All runs together are as long as there
  are stages.
* (spreading) To a run of L stages a component gives at most its size / L workers a stage. Whoever is in a run
  at least that long pays for its replicas - 1 cheapest partners under these limits, and the lengths of the
  runs say how many workers are in runs at least that long: take those who pay least. So for every way to part
  the stages into runs there is a least D. (Of too many stages, only the longest of r runs is looked at.)

Both give a least number of runs; one hop less than that costs more than t, and as many cost more than any
smaller limit. The components change at the edges of the minimum spanning tree only. So the sum of the hops is
at least the sum over these limits of (step to the next limit) x (hops above it), beside the cheapest link for
each hop; and the bound is the least, over D, of D plus twice that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farflung.planner.grid.components import levels_of
from farflung.planner.grid.objective import GridCosts
from farflung.planner.grid.packing import fewest_runs, least_sync, needs
from farflung.planner.grid.spreading import least_by_runs

MOST_SYNCS = 160
_ROUNDING = 1 - 1e-10  # of the sums, which are taken in another order elsewhere
_TOLERANCE = 1e-11
Seconds = NDArray[np.float64]


def lower_bound(costs: GridCosts) -> float:
    """Seconds below which no grid's total can be."""
    stages, replicas = costs.objective.stages, costs.objective.replicas
    away = costs.sync + np.diag(np.full(len(costs.sync), np.inf))
    floor = float(np.sort(away, axis=1)[:, : replicas - 1].sum(axis=1).max())
    if stages == 1:
        return floor * _ROUNDING
    cheapest, levels = levels_of(np.minimum(costs.hop, costs.hop.T))
    packing = [least_sync(costs.sync, level, replicas) for level in levels]
    spreading = [least_by_runs(costs.sync, level, stages, replicas) for level in levels]
    syncs = _breakpoints(floor, packing + spreading)
    limits = np.append(syncs[1:], np.inf) - _TOLERANCE
    hops, runs = np.full(len(syncs), cheapest * (stages - 1)), np.ones(len(syncs))
    for level, least, spread in reversed(list(zip(levels, packing, spreading, strict=True))):
        runs = np.maximum(runs, fewest_runs(needs(least, limits), level, stages, replicas))
        runs = np.maximum(runs, 1 + (spread[:, np.newaxis] >= limits).sum(axis=0))
        hops += level.step * (runs - 1)
    return float((syncs + 2 * hops).min()) * _ROUNDING


def _breakpoints(floor: float, found: list[Seconds]) -> Seconds:
    """What the dearest worker may pay at which more becomes possible: ascending, thinned if too many."""
    values = np.concatenate([np.array([floor]), *(seconds.ravel() for seconds in found)])
    values = np.unique(np.round(values[(values >= floor) & np.isfinite(values)], 12))
    values[0] = floor
    if len(values) > MOST_SYNCS:
        values = values[np.linspace(0, len(values) - 1, MOST_SYNCS).astype(int)]
    return np.array(values)
