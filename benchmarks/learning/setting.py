"""What a policy chooses where lines are slow: a way, from a plan and four homes.

The slowest line has the Mbit/s of the setting, the next between stages twice and the last four times as many,
for a policy that tells links apart has to have some. A home computes like one core of a CPU.
"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.codec_chain import Boundary, rungs_of
from benchmarks.learning.way import Way, halves

from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.policies import adatopk, uniform_topk
from farflung.plans import FEEDER, LinkCodec, Plan, Topology, WorkerSpec
from farflung.plans.codec_pair import DENSE
from farflung.simulator import Conditions
from farflung.simulator.costs import segment_seconds, transfers_of

MBPS = (8, 16, 32, 100)
TFLOPS = 0.05
LATENCY_MS = 20.0
MOST_LOSS = 0.02
_WORD = ":"


def is_policy(text: str) -> bool:
    """Whether this is a policy and not a way: `auto:MBPS`, `adatopk:RATIO:MBPS` or `uniform:RATIO`."""
    return text.split(_WORD)[0] in ("auto", "adatopk", "uniform")


def chosen(text: str, plan: Plan) -> Way:
    """The way that a policy makes of a plan.

    Raises
    ------
    ValueError
        A number is missing or none.
    CodecError
        A ratio below 1.
    """
    name, *words = text.split(_WORD)
    numbers = [float(word) for word in words]
    if len(numbers) != (2 if name == "adatopk" else 1):
        raise ValueError(f"{text!r}: expected auto:MBPS, adatopk:RATIO:MBPS or uniform:RATIO")
    topology = homes(plan.workers(), MBPS[0] if name == "uniform" else numbers[-1])
    if name == "auto":
        return _way(_auto(plan, topology))
    policy = adatopk(numbers[0]) if name == "adatopk" else uniform_topk(numbers[0])
    return _way(_rungs(plan, {(link.source, link.target): link for link in policy(plan, topology)}))


def homes(workers: list[str], mbps: float) -> Topology:
    """The topology of a setting."""
    specs = tuple(WorkerSpec(worker, worker, TFLOPS, 16.0) for worker in workers)
    places = range(len(workers))
    rates = tuple(tuple(mbps * 2.0 ** min(a, b, 2) for b in places) for a in places)
    latencies = tuple(tuple(0.0 if a == b else LATENCY_MS for b in places) for a in places)
    return Topology(workers=specs, latency_ms=latencies, bandwidth_mbps=rates)


def _auto(plan: Plan, topology: Topology) -> tuple[str, ...]:
    """What `auto` takes between neighbours, by the rate-loss table of this installation."""
    stages = range(len(plan.placements))
    rates = topology.bandwidth_mbps
    transfers = {
        (transfer.source, transfer.target): transfer
        for transfer in transfers_of(plan.edges)
        if transfer.source != FEEDER
    }
    boundaries = [
        Boundary(
            transfers[a, b].backward_bytes, rates[a][b], rates[b][a], LATENCY_MS / 1e3,
            transfers[a, b].forward_bytes - transfers[a, b].backward_bytes,
        )
        for a, b in pairwise(stages)
    ]  # fmt: skip
    seconds = segment_seconds(plan, topology, Conditions(), stages)
    return rungs_of(boundaries, seconds, plan.microbatches, limits=Limits(max_loss_gap=MOST_LOSS))


def _rungs(plan: Plan, links: dict[tuple[str, str], LinkCodec]) -> tuple[str, ...]:
    rungs = []
    for source, target in pairwise(plan.workers()):
        there, back = links.get((source, target)), links.get((target, source))
        forward = halves(there.codec)[0] if there else DENSE
        backward = halves(back.codec)[1] if back else DENSE
        rungs.append(forward if forward == backward else f"{forward}/{backward}")
    return tuple(rungs)


def _way(rungs: tuple[str, ...]) -> Way:
    if len(set(rungs)) == 1:
        rungs = rungs[:1]
    return Way.of(";".join(rungs))
