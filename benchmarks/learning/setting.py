"""What a policy chooses where lines are slow: a way, from a plan and four homes.

The slowest line has the Mbit/s of the setting, the next between stages twice and the last four times as many,
for a policy that tells links apart has to have some. A home computes like one core of a CPU.
"""

from __future__ import annotations

from itertools import pairwise

from benchmarks.learning.way import Phase, Way, halves

from farflung.plan import LinkCodec, Plan, Topology, WorkerSpec
from farflung.plan.rung import DENSE
from farflung.planner.compression.limits import Limits
from farflung.planner.compression.policies import Policy, adatopk, auto, uniform_topk
from farflung.simulator import Conditions

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
    codecs = _policy(name, numbers[0])(plan, topology)
    return _way(plan, {(link.source, link.target): link for link in codecs})


def homes(workers: list[str], mbps: float) -> Topology:
    """The topology of a setting."""
    specs = tuple(WorkerSpec(worker, worker, TFLOPS, 16.0) for worker in workers)
    places = range(len(workers))
    rates = tuple(tuple(mbps * 2.0 ** min(a, b, 2) for b in places) for a in places)
    latencies = tuple(tuple(0.0 if a == b else LATENCY_MS for b in places) for a in places)
    return Topology(workers=specs, latency_ms=latencies, bandwidth_mbps=rates)


def _policy(name: str, ratio: float) -> Policy:
    if name == "auto":
        return auto(Limits(max_loss_gap=MOST_LOSS), Conditions())
    return adatopk(ratio) if name == "adatopk" else uniform_topk(ratio)


def _way(plan: Plan, links: dict[tuple[str, str], LinkCodec]) -> Way:
    workers = plan.workers()
    rungs = []
    for source, target in pairwise(workers):
        there, back = links.get((source, target)), links.get((target, source))
        forward = halves(there.codec)[0] if there else DENSE
        backward = halves(back.codec)[1] if back else DENSE
        rungs.append(forward if forward == backward else f"{forward}/{backward}")
    if len(set(rungs)) == 1:
        del rungs[1:]
    return Way(";".join(rungs), (Phase(1.0, tuple(rungs)),))
