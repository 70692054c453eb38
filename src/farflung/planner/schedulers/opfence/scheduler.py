"""OP-Fence, the scheduler of FusionLLM (arXiv 2410.12707), as far as it is known, and a variant of it.

The abstract says: "OP-Fence scheduler clusters devices with similar bandwidths together and partitions the
DAG to increase throughput". The body was not available. From memory, unverified: the clusters are communities
of the bandwidth graph. They and their devices are ordered so that slow links are crossed as rarely as
possible. Along this order the chain of operators is cut into contiguous ranges sized to the devices, so that
the busiest device or link has the least time per microbatch, within memory. Our choices in both schedulers:

* the clusters: Louvain's communities, refined (`communities.py`); the paper's method is uncertain;
* the order of clusters and of devices in them: the cheapest path for one cut's bytes (`fenced_order`), in
  either direction; the paper's rule is unknown;
* the cut: exact, and optimal for this order (`chain.py`); the paper's cannot be better.

`opfence` gives every worker a range, as the paper's baselines do. The paper may also leave devices without
work to reduce the largest load. `opfence_plus` does that, and chooses windows together with cuts.
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
"""Largest community whose order is searched; in larger ones, each device precedes its nearest neighbour."""


def fenced_order(
    devices: Devices, communities: Sequence[Sequence[int]], crossing_bytes: tuple[float, float]
) -> list[int]:
    """An order of all devices in which each community is contiguous.

    A link costs the seconds of one cut's bytes (forward, backward) to the next device and back. Communities
    are joined by their best links. Inside each, devices are ordered from the one that the previous community
    reaches to the best gateway to the next.
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
    """Seconds of a cut between each two devices; a missing link costs more than any other."""
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
    """The members in order, from the end of the path so far to the gateway to the next community."""
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
"""How many devices in a row the cut may leave out between two others; at the ends, whole communities."""

MOST_BEGINNINGS = 24

_Cut = tuple[Devices, ChainCut, int]
"""A chain of devices, its cut, and the window."""


def opfence(topology: Topology, workload: Workload, options: Options) -> Schedule:
    """Contiguous segments along the communities of a fleet, one for every worker, with the least bottleneck.

    If a number of workers is given, they are that many neighbours in the order with the least bottleneck.
    Workers are only left out if there are more of them than possible segments, or if some have too little
    memory for any segment. The window is chosen as for the baselines.

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
    """As `opfence`, but may leave out workers and whole communities, and compares windows.

    The window is as wide as memory allows without cuts that lengthen the step.

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
    """Every run of the requested number of neighbours in the order, in both directions.

    Without a number, the whole order. A loop begins with the first device of a chain. So if parameters are
    tied, `runs` also includes chains without the first communities.
    """
    found = communities(fleet.topology, options.seed)
    order = fenced_order(fleet.devices, found, _typical_cut(workload))
    for direction in (order, order[::-1]) if len(order) > 1 else (order,):
        if fleet.count:
            chains = [direction[at : at + fleet.count] for at in range(len(direction) - fleet.count + 1)]
        else:
            beginnings = _beginnings(direction, found) if runs and workload.ties else [0]
            chains = [direction[at:] for at in beginnings]
        for chain in chains:
            yield fleet.devices.take(chain)


def _beginnings(order: list[int], found: Sequence[Sequence[int]]) -> list[int]:
    """Where the first `MOST_BEGINNINGS` communities begin in an order."""
    community = {number: index for index, members in enumerate(found) for number in members}
    changes = (at for at in range(1, len(order)) if community[order[at - 1]] != community[order[at]])
    return [0, *islice(changes, MOST_BEGINNINGS - 1)]


def _typical_cut(workload: Workload) -> tuple[float, float]:
    """Bytes of a typical cut between blocks: the lower quartile of the positions where any bytes cross."""
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
