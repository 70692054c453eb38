from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.workloads import random_topology, random_workload

from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.cutting.positions import RECOMPUTED
from farflung.planner.devices import BYTES_PER_MEGABIT, Devices
from farflung.plans import Topology
from farflung.workload import Workload
from farflung.workload.footprint import NOTHING, Footprint

CLOSE = 1e-5


def busiest(workload: Workload, topology: Topology, cut: ChainCut) -> float:
    """The bottleneck by the book: one loop over the segments, from the topology itself."""
    edges = [0, *cut.cuts, len(workload)]
    seconds: dict[object, float] = defaultdict(float)
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        worker = cut.devices[number]
        factor = RECOMPUTED if cut.recompute[number] else 1.0
        operations = 3 * workload.flops[start:stop].sum() * factor
        seconds["compute", worker] += operations / (topology.workers[worker].tflops * 1e12)
    for at, (a, b) in zip(cut.cuts, itertools.pairwise(cut.devices), strict=True):
        for source, target, size in (
            (a, b, workload.crossing_forward[at]),
            (b, a, workload.crossing_backward[at]),
        ):
            sender, receiver = topology.workers[source], topology.workers[target]
            up, down = sender.up_mbps or np.inf, receiver.down_mbps or np.inf
            rate = min(topology.bandwidth_mbps[source][target], up, down)
            seconds["link", source, target] += size / (rate * BYTES_PER_MEGABIT)
            seconds["up", source] += size / (up * BYTES_PER_MEGABIT)
            seconds["down", target] += size / (down * BYTES_PER_MEGABIT)
    return max(seconds.values())


def is_legal(workload: Workload, topology: Topology, cut: ChainCut, window: int) -> bool:
    ranges = list(itertools.pairwise([0, *cut.cuts, len(workload)]))
    used: dict[int, Footprint[float]] = defaultdict(lambda: NOTHING)
    for (start, stop), worker, recompute in zip(ranges, cut.devices, cut.recompute, strict=True):
        if not workload.parameters[start:stop].sum():
            return False
        used[worker] = used[worker].beside(workload.footprint(start, stop, window, recompute))
    holders = [
        {worker for at in uses for (a, b), worker in zip(ranges, cut.devices, strict=True) if a <= at < b}
        for uses in workload.ties
    ]
    return (
        all(workload.legal[at] for at in cut.cuts)
        and all(len(found) == 1 for found in holders)
        and all(used[w].bytes <= topology.workers[w].memory_gb * 1e9 for w in used)
    )


def all_cuts(workload: Workload, chains: Sequence[tuple[int, ...]]) -> Iterator[ChainCut]:
    for chain in chains:
        for cuts in itertools.combinations(range(1, len(workload)), len(chain) - 1):
            yield ChainCut(cuts, chain, (False,) * len(chain), 0.0, 0.0)


def least(workload: Workload, topology: Topology, chains: Sequence[tuple[int, ...]], window: int) -> float:
    """The bottleneck of the best cut by trying all of them."""
    return min(
        (
            busiest(workload, topology, cut)
            for cut in all_cuts(workload, chains)
            if is_legal(workload, topology, cut, window)
        ),
        default=np.inf,
    )


@settings(max_examples=80)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 9), count=st.integers(1, 4), window=st.integers(1, 3))
def test_no_cut_of_all_devices_is_better(seed: int, nodes: int, count: int, window: int) -> None:
    workload, topology = random_workload(seed, nodes), random_topology(seed, count)
    best = least(workload, topology, [tuple(range(count))], window)
    cut = Cutter(workload, window).cut(Devices.of(topology))
    if cut is None:
        assert best == np.inf
        return
    assert is_legal(workload, topology, cut, window)
    assert cut.bottleneck_seconds == pytest.approx(busiest(workload, topology, cut))
    assert cut.bottleneck_seconds == pytest.approx(best, rel=CLOSE)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 8), skips=st.integers(0, 4))
def test_devices_are_left_out_where_that_is_better(seed: int, nodes: int, skips: int) -> None:
    workload, topology = random_workload(seed, nodes), random_topology(seed, 4)
    chains = [
        chain
        for size in range(1, 5)
        for chain in itertools.combinations(range(4), size)
        if (size == 4 if skips == 0 else all(b - a <= skips + 1 for a, b in itertools.pairwise(chain)))
    ]
    best = least(workload, topology, chains, 2)
    cut = Cutter(workload, 2).cut(Devices.of(topology), skips=skips)
    assert (cut is None) == (best == np.inf)
    if cut is not None:
        assert is_legal(workload, topology, cut, 2)
        assert cut.bottleneck_seconds == pytest.approx(best, rel=CLOSE)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), nodes=st.integers(3, 9), count=st.integers(1, 4))
def test_a_tied_parameter_stays_on_one_device(seed: int, nodes: int, count: int) -> None:
    """Whole, or as a loop whose first cut is one of the cheapest: never better than the best there is."""
    workload, topology = random_workload(seed, nodes, ties=True), random_topology(seed, count)
    chain = tuple(range(count))
    chains = [chain, (*chain, 0)] if count > 1 else [chain]
    best = least(workload, topology, chains, 2)
    cut = Cutter(workload, 2).cut(Devices.of(topology))
    if cut is not None:
        assert is_legal(workload, topology, cut, 2)
        assert cut.bottleneck_seconds == pytest.approx(busiest(workload, topology, cut))
        assert cut.bottleneck_seconds >= best * (1 - CLOSE)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), slack=st.floats(0, 1))
def test_slack_buys_a_shorter_fill(seed: int, slack: float) -> None:
    workload, devices = random_workload(seed, 12), Devices.of(random_topology(seed, 3, memory=2000.0))
    cutter = Cutter(workload, 2)
    tight, loose = cutter.cut(devices), cutter.cut(devices, slacks=(slack,))
    if tight is None or loose is None:
        assert tight is loose is None
        return
    assert loose.fill_seconds <= tight.fill_seconds * (1 + CLOSE)
    assert loose.bottleneck_seconds <= tight.bottleneck_seconds * (1 + slack + CLOSE)
    both = cutter.cut(devices, slacks=(0.0, slack))
    assert both is not None
    assert both.step_seconds(workload.microbatches) == min(
        cut.step_seconds(workload.microbatches) for cut in (tight, loose)
    )


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_recomputation_only_where_the_tape_does_not_fit(seed: int) -> None:
    workload, topology = random_workload(seed, 10), random_topology(seed, 3, memory=120.0)
    without = Cutter(workload, 3).cut(Devices.of(topology))
    cut = Cutter(workload, 3, recompute=True).cut(Devices.of(topology))
    if cut is None:
        assert without is None
        return
    assert is_legal(workload, topology, cut, 3)
    assert without is None or cut.bottleneck_seconds <= without.bottleneck_seconds * (1 + CLOSE)
    for (start, stop), worker, twice in zip(
        itertools.pairwise([0, *cut.cuts, len(workload)]), cut.devices, cut.recompute, strict=True
    ):
        needed = workload.memory_bytes(start, stop, 3)
        assert twice == (needed > topology.workers[worker].memory_gb * 1e9)


def test_only_what_is_below_a_bound_is_sought() -> None:
    workload, devices = random_workload(3, 12), Devices.of(random_topology(3, 3, memory=2000.0))
    cutter = Cutter(workload, 2)
    cut = cutter.cut(devices)
    assert cut is not None
    assert cutter.cut(devices, below=cut.bottleneck_seconds) is None
    assert cutter.cut(devices, below=cut.bottleneck_seconds * 1.01) == cut
