"""How fast the simulator is, how close the closed form comes to it, and what the runtime's policy is worth.

*growth*: CPU seconds and memory for a step of 32 microbatches on 8 to 1,000 workers: one deep pipeline, and
40 sites, a segment each, with up to 25 replicas that add up gradients; every worker's links share its line.
*agreement*: simulated step over closed form on random chains with unequal devices and links, where each link
has a line to itself, in windows as planners choose them. *turns*: the same chains under a policy that runs
backward passes first wherever one is ready, against ours. *split*: those chains, and models on the shipped
testbeds, with backward passes as one task, against gradients of parameters that wait.

    python benchmarks/simulator.py [--chains 600] [--testbeds four-homes,lan] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import name_of_testbed, several, whole
from benchmarks.models import library
from benchmarks.simulated_plans import chain, random_chain, topology

from farflung.planner.assignment import Options
from farflung.planner.objective.closed_form import step_seconds
from farflung.planner.objective.window import choose_window
from farflung.planner.schedulers.auto import auto
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology
from farflung.plans.testbeds.catalogue import load_testbed
from farflung.plans.wishes import DATA_SHEET_EFFICIENCY
from farflung.schedule import Policy, Task
from farflung.simulator import Conditions, simulate

MICROBATCHES = 32
PIPELINES = (8, 24, 64, 128, 256, 512, 1000)
REPLICAS = (1, 5, 12, 25)  # of a pipeline over 40 sites
MOST_SECONDS = 10.0
TESTBEDS = ("four-homes", "two-sites", "three-sites", "good-wan", "lan", "eight-homes", "fusionllm-48")
MODELS = {"gpt2-small": (32, 1), "resnet-101": (32, 4)}  # microbatches of so many samples


@dataclass(frozen=True)
class Growth:
    """One simulation: its size, what it took, and what it said."""

    shape: str
    workers: int
    cpu_seconds: float
    closed_form_cpu_seconds: float
    step_seconds: float
    closed_form_seconds: float
    peak_megabytes: float

    def line(self) -> str:
        return (
            f"{self.shape}, {self.workers} workers: {self.cpu_seconds:.3f} CPU s (closed form"
            f" {self.closed_form_cpu_seconds * 1e3:.2f} ms), {self.peak_megabytes:.0f} MB; a step takes"
            f" {self.step_seconds:.1f} s (closed form {self.closed_form_seconds:.1f})"
        )


@dataclass(frozen=True)
class Spread:
    """Ratios: median, 90th and 99th percentile, the largest; the part above 1.05, above 1.01, below 0.99."""

    count: int
    median: float
    p90: float
    p99: float
    most: float
    above_5_percent: float
    above_1_percent: float
    below_1_percent: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Spread:
        found = sorted(ratios)
        count = len(found)
        return cls(
            count,
            found[count // 2],
            found[int(count * 0.9)],
            found[int(count * 0.99)],
            found[-1],
            sum(ratio > 1.05 for ratio in found) / count,
            sum(ratio > 1.01 for ratio in found) / count,
            sum(ratio < 0.99 for ratio in found) / count,
        )

    def line(self) -> str:
        return (
            f"median {self.median:.3f}, 90 % {self.p90:.3f}, 99 % {self.p99:.3f}, most {self.most:.3f};"
            f" above 1.05: {self.above_5_percent:.1%}, above 1.01: {self.above_1_percent:.1%},"
            f" below 0.99: {self.below_1_percent:.1%} of {self.count}"
        )


class BackwardFirst(Policy):
    """What the runtime did before: a backward pass wherever one is ready."""

    def next(self) -> Task | None:
        return self._next_backward() or self._next_forward() or self._next_accumulation()


def deep(workers: int) -> tuple[Plan, Topology]:
    """One segment a worker, every line shared."""
    draw = random.Random(workers)
    places = topology(
        [draw.uniform(1, 2) for _ in range(workers)],
        100.0,
        20.0,
        [draw.uniform(50, 100) for _ in range(workers)],
        [draw.uniform(50, 100) for _ in range(workers)],
    )
    return chain(
        [draw.uniform(0, 0.1) for _ in range(workers)], [10**6] * (workers - 1), MICROBATCHES
    ), places


def wide(segments: int, replicas: int) -> tuple[Plan, Topology]:
    """A segment for each site, a replica for each of its workers; 100 MB of gradients a segment."""
    draw = random.Random(replicas)
    count = segments * replicas
    site = [number // replicas for number in range(count)]
    lines = [draw.uniform(200, 1000) for _ in range(count)]
    places = topology(
        [draw.uniform(1, 2) for _ in range(count)],
        [[10_000.0 if site[a] == site[b] else 300.0 for b in range(count)] for a in range(count)],
        [[0.2 if site[a] == site[b] else 30.0 for b in range(count)] for a in range(count)],
        lines,
        lines,
    )
    shares = [MICROBATCHES // replicas + (r < MICROBATCHES % replicas) for r in range(replicas)]
    placements = [
        Placement(n, [f"w{n * replicas + r}" for r in range(replicas)], 5 * 10**10, 10**8, 1)
        for n in range(segments)
    ]
    edges = [Edge(0, FEEDER, 0, 10**5, False), Edge(0, FEEDER, segments - 1, 10**5, False)]
    edges += [Edge(n + 1, n, n + 1, 10**6, True) for n in range(segments - 1)]
    return Plan(placements, edges, MICROBATCHES, MICROBATCHES, shares if replicas > 1 else []), places


def grow(shape: str, plan: Plan, places: Topology) -> Growth:
    """Simulate once, and take the closed form once."""
    began = time.process_time()
    found = simulate(plan, places)
    simulated = time.process_time()
    closed = step_seconds(plan, places)
    ended = time.process_time()
    return Growth(
        shape,
        len(plan.workers()),
        simulated - began,
        ended - simulated,
        found.step_seconds,
        closed,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    )


def drawn_chains(count: int) -> list[tuple[Plan, Topology]]:
    return [random_chain(random.Random(seed)) for seed in range(count)]


def has_loop(plan: Plan) -> bool:
    return len(plan.workers()) < len(plan.placements)


def agreement(chains: Sequence[tuple[Plan, Topology]]) -> Spread:
    """Simulated over closed form, in chosen windows."""
    ratios = []
    for plan, places in chains:
        conditions = Conditions(window=choose_window(plan, places))
        found = simulate(plan, places, conditions).step_seconds
        ratios.append(found / step_seconds(plan, places, conditions))
    return Spread.of(ratios)


def turns(chains: Sequence[tuple[Plan, Topology]]) -> Spread:
    """The step with backward passes first over ours, each in the window of the plan."""
    ratios = []
    for plan, places in chains:
        with patch("farflung.simulator.device.Policy", BackwardFirst):
            before = simulate(plan, places).step_seconds
        ratios.append(before / simulate(plan, places).step_seconds)
    return Spread.of(ratios)


def split(chains: Sequence[tuple[Plan, Topology]]) -> Spread:
    """The step with whole backward passes over ours, each in the window of the plan."""
    ratios = []
    for plan, places in chains:
        whole = simulate(plan, places, Conditions(split_backward=False)).step_seconds
        ratios.append(whole / simulate(plan, places).step_seconds)
    return Spread.of(ratios)


@dataclass(frozen=True)
class Gain:
    """A model on a testbed, as `auto` plans it: a step with whole backward passes, and with split ones."""

    testbed: str
    model: str
    workers: int
    whole_seconds: float
    split_seconds: float

    def line(self) -> str:
        gain = self.whole_seconds / self.split_seconds
        return (
            f"split, {self.model} on {self.testbed} ({self.workers} workers): {self.split_seconds:.3g} s,"
            f" whole {self.whole_seconds:.3g} s, ratio {gain:.3f}"
        )


def gain(testbed: str, model: str) -> Gain:
    """Plan for split backward passes, simulate both; whole ones in the window that suits them."""
    places, workload = load_testbed(testbed), library.workload(model, *MODELS[model])
    found = auto(places, workload, Options(efficiency=DATA_SHEET_EFFICIENCY, budget=400, recompute=True))
    whole = Conditions(efficiency=DATA_SHEET_EFFICIENCY, split_backward=False)
    window = choose_window(found.plan, places, whole, found.plan.window)
    seconds = simulate(found.plan, places, replace(whole, window=window)).step_seconds
    return Gain(testbed, model, len(found.plan.workers()), seconds, found.step_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chains", type=whole, default=600, help="random chains; default: %(default)s")
    parser.add_argument(
        "--testbeds", type=several(name_of_testbed), default=",".join(TESTBEDS), help="default: %(default)s"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for shape, sizes in (("pipeline", PIPELINES), ("40 sites", REPLICAS)):
        for size in sizes:
            rows.append(grow(shape, *(deep(size) if shape == "pipeline" else wide(40, size))))
            tell(rows[-1].line())
    drawn = drawn_chains(options.chains)
    chains, loops = [c for c in drawn if not has_loop(c[0])], [c for c in drawn if has_loop(c[0])]
    close = {"chains": agreement(chains), "loops": agreement(loops)}
    for name, spread in close.items():
        tell(f"simulated over closed form, {name}: {spread.line()}")
    gained = turns(drawn)
    tell(f"backward first over turns: {gained.line()}")
    spread = split(drawn)
    tell(f"whole backward passes over split: {spread.line()}")
    gains = [gain(testbed, model) for testbed in options.testbeds.split(",") for model in MODELS]
    for row in gains:
        tell(row.line())
    ok = rows[len(PIPELINES) - 1].cpu_seconds <= MOST_SECONDS and rows[-1].cpu_seconds <= MOST_SECONDS
    if options.json:
        agreed = {name: asdict(spread) for name, spread in close.items()}
        document = {"growth": [asdict(row) for row in rows], "agreement": agreed, "turns": asdict(gained)}
        document |= {"split": asdict(spread), "testbeds": [asdict(row) for row in gains]}
        print(json.dumps({**document, "ok": ok}))
    return 0 if ok else 1


def tell(line: str) -> None:
    """One line of the result, for people."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
