"""OP-Fence, the scheduler of FusionLLM (arXiv 2410.12707), as far as it could be read, and ours made of it.

The abstract says: "OP-Fence scheduler clusters devices with similar bandwidths together and partitions the
DAG to increase throughput". The body could not be read. From memory, unverified: the clusters are communities
of the bandwidth graph; they and their devices are put in an order in which slow links are crossed as seldom
as possible; along it the chain of operators is cut into contiguous ranges sized to the devices, so that what
the busiest device or link does each microbatch is least, within memory. What is ours in both schedulers:

* the clusters: Louvain's communities, refined (`communities.py`); the paper's method is not certain;
* the order of clusters and of devices in them: the cheapest path for one cut's bytes (`fenced_order`), in
  either direction; the paper's rule is not known;
* the cut: exact, and the best there is for this order (`chain.py`); the paper's cannot be better for it.

`opfence` gives every worker a range, as an order made to cross slow links seldom presupposes, and as the
paper's baselines do. One may also read that a device can be left without work, for the largest load is then
least; `opfence_plus` does that, and weighs windows against cuts, of which no excerpt speaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from farflung.planner.answer import answer, assignment_of
from farflung.planner.assignment import Options, Schedule
from farflung.planner.checks import Fleet, most_segments, refuse_memory, usable_fleet
from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.devices import Devices
from farflung.planner.objective.window import with_window
from farflung.planner.schedulers.baselines import windows
from farflung.planner.schedulers.open_path import cheapest_path
from farflung.planner.schedulers.opfence.communities import communities
from farflung.plans import Topology
from farflung.workload import Workload

Costs = NDArray[np.float64]

MOST_IMPROVED = 24
"""Members of a community whose order is searched; larger ones follow the nearest neighbour."""


def fenced_order(
    devices: Devices, communities: Sequence[Sequence[int]], crossing_bytes: tuple[float, float]
) -> list[int]:
    """Every device once, each community in one piece.

    A link costs the seconds that the bytes of one cut, (forward, backward), take to the next device and
    back. Communities follow one another over their best links; inside each one devices do, from the device
    that the one before hands over to, to the best gateway to the next one.
    """
    costs = _hop_seconds(devices, crossing_bytes)
    between = np.array([[costs[np.ix_(a, b)].min() for b in communities] for a in communities])
    route = [list(communities[number]) for number in cheapest_path(between)]
    order: list[int] = []
    for number, members in enumerate(route):
        following = route[number + 1] if number + 1 < len(route) else []
        order += _through(costs, order[-1:], members, following)
    return order


def _hop_seconds(devices: Devices, crossing_bytes: tuple[float, float]) -> Costs:
    """What a cut between each two devices costs; with no link more than with any."""
    forward, backward = crossing_bytes
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = forward / devices.bandwidth + backward / devices.bandwidth.T
    seconds += devices.latency + devices.latency.T
    linked = np.isfinite(seconds)
    worst = seconds[linked].max(initial=1.0)
    return np.asarray(np.where(linked, seconds, len(devices) * worst))


def _through(
    costs: Costs, before: Sequence[int], members: Sequence[int], following: Sequence[int]
) -> list[int]:
    """The members in order, from the end of the path so far to the gateway to what follows."""
    if len(members) > MOST_IMPROVED:
        return _nearest(costs, before, members, following)
    never = costs.max() * len(costs) * 4 + 1.0
    count = len(members)
    ends = np.full((count + 2, count + 2), never)
    ends[:count, :count] = costs[np.ix_(members, members)]
    ends[count, :count] = costs[before[0], members] if before else 0.0
    ends[:count, count + 1] = costs[np.ix_(members, following)].min(axis=1) if following else 0.0
    path = [at for at in cheapest_path(ends) if at < count]
    return [members[at] for at in path]


def _nearest(
    costs: Costs, before: Sequence[int], members: Sequence[int], following: Sequence[int]
) -> list[int]:
    left, order = set(members), list(before)
    gateway = min(left, key=lambda at: (costs[at, following].min(), at)) if following else None
    while left:
        here = order[-1] if order else min(left - {gateway})
        closest = min(left - {gateway} or left, key=lambda at: (costs[here, at], at))
        order.append(closest)
        left.remove(closest)
    return order[len(before) :]


MOST_SKIPS = 16
"""Devices in a row that the cut may leave out between two others; whole communities at the ends."""

MOST_BEGINNINGS = 24

_Cut = tuple[Devices, ChainCut, int]
"""A chain of devices, its cut, and the window."""


def opfence(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Contiguous segments along the communities of a fleet, one for every worker, with the least bottleneck.

    Where a number of workers is asked for, they are that many neighbours in the order: those with the least
    bottleneck. Workers are left out only where there are more of them than there can be segments, or where
    some have too little memory for any. The window is chosen as for the baselines.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no such cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    chains = list(_chains(fleet, workload, options, runs=False))
    skips = 0 if fleet.count else min(len(fleet.devices), MOST_SKIPS)
    all_of_them = fleet.count or len(fleet.devices) <= most_segments(workload, workload.legal)
    for window in windows(workload, options, len(chains[0])):
        cutter = Cutter(workload, window, options.recompute)
        found = _best(cutter, chains, 0) if all_of_them else None
        if found is None and skips:
            found = _best(cutter, chains, skips)
        if found is not None:
            return _answer("op-fence", fleet, workload, (*found, window), options)
    raise refuse_memory(workload, chains[0], skips, options)


def opfence_plus(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """As `opfence`, but workers and whole communities may be left out, and windows are weighed.

    The window is as wide as memory allows without cuts that make the step longer.

    Raises
    ------
    PlanError
        See `usable_fleet`; or no such cut fits the workers.
    """
    fleet = usable_fleet(topology, workload, options)
    chains = list(_chains(fleet, workload, options, runs=True))
    skips = 0 if fleet.count else min(len(fleet.devices), MOST_SKIPS)
    best: _Cut | None = None
    for window in windows(workload, options, len(chains[0])):
        found = _best(Cutter(workload, window, options.recompute), chains, skips)
        if found is None:
            continue
        if best is not None and _seconds(workload, *best) <= _seconds(workload, *found, window):
            break
        best = *found, window
    if best is None:
        raise refuse_memory(workload, chains[0], skips, options)
    return _answer("op-fence-plus", fleet, workload, best, options)


def _answer(name: str, fleet: Fleet, workload: Workload, cut: _Cut, options: Options) -> Schedule:
    assignment = with_window(workload, assignment_of(workload, *cut), fleet.topology, options)
    return answer(name, fleet, workload, assignment, options)


def _seconds(workload: Workload, _: Devices, cut: ChainCut, window: int) -> float:
    """A step's time by the closed form of one bottleneck, and by the rounds of the window."""
    rounds = -(-workload.microbatches // window)
    return max(cut.step_seconds(workload.microbatches), rounds * cut.fill_seconds)


def _chains(fleet: Fleet, workload: Workload, options: Options, runs: bool) -> Iterator[Devices]:
    """Every run of as many neighbours in the order as are asked for, in both directions.

    Where no number is, the whole order. A loop begins with the first of a chain, so with `runs` chains
    without the first communities count too where parameters are tied.
    """
    found = communities(fleet.topology, options.seed)
    order = fenced_order(fleet.devices, found, _typical_cut(workload))
    for way in (order, order[::-1]) if len(order) > 1 else (order,):
        if fleet.count:
            chains = [way[at : at + fleet.count] for at in range(len(way) - fleet.count + 1)]
        else:
            beginnings = _beginnings(way, found) if runs and workload.ties else [0]
            chains = [way[at:] for at in beginnings]
        for chain in chains:
            yield fleet.devices.take(chain)


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
