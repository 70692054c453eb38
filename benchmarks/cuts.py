"""What the exact cut and the schedulers around it take: `python -m benchmarks.cuts [--json]`.

CPU seconds of one core on random fleets of sites: cuts and OP-Fence for GPT-2 XL (729 nodes, tied embedding)
in microbatches of one sequence, the exact scheduler for ViT-B/16. Then the steps of `examples/gpt.py` if all
workers of a testbed are to be used.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from benchmarks.models import library

from farflung.client.api.load import load_job
from farflung.client.capture.check import capture_shapes
from farflung.planner.assignment import Options
from farflung.planner.cutting.chain import ChainCut, Cutter
from farflung.planner.devices import Devices
from farflung.planner.schedulers.baselines import equal_compute, equal_count
from farflung.planner.schedulers.exact import exact
from farflung.planner.schedulers.opfence import opfence
from farflung.plans import Topology, WorkerSpec
from farflung.plans.testbeds.catalogue import load_testbed
from farflung.workload import Workload, workload_of

MICROBATCHES, WINDOW, SKIPS = 32, 16, 16
EXAMPLE = Path("examples/gpt.py")

Answer = TypeVar("Answer")


class Row(msgspec.Struct, frozen=True):
    """One measurement: `answer` is a bottleneck for cuts and a simulated step for schedulers, in seconds."""

    what: str
    workers: int
    used: int
    cpu_seconds: float
    answer_seconds: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [*_cuts(), *_fences(), *_exact(), *_testbeds()]
    if asked.json:
        print(msgspec.json.encode({"rows": rows}).decode())
        return
    for row in rows:
        print(
            f"{row.what:25s} {row.workers:5d} workers, {row.used:3d} used: "
            f"{row.cpu_seconds:6.2f} CPU seconds, {row.answer_seconds:8.3f} s"
        )


def sites(count: int, size: int, seed: int = 0) -> Topology:
    """`count` sites of `size` unequal workers: 10 Gbit/s inside, 8 Mbit/s to 1 Gbit/s and 5-80 ms between."""
    draw = np.random.default_rng(seed)
    site = np.arange(count * size) // size
    mbps = draw.choice([8.0, 50.0, 100.0, 500.0, 1000.0], (count, count))
    away = draw.uniform(5, 80, (count, count))
    same = site[:, None] == site
    rates = np.where(same, 10_000.0, np.minimum(mbps, mbps.T)[np.ix_(site, site)])
    latency = np.where(same, 0.1, ((away + away.T) / 2)[np.ix_(site, site)])
    workers = [
        WorkerSpec(f"w{n}", f"s{s}", float(draw.choice([8, 15, 30, 60])), float(draw.choice([8, 12, 24])))
        for n, s in enumerate(site.tolist())
    ]
    rows, delays = map(tuple, rates.tolist()), map(tuple, latency.tolist())
    return Topology(workers=tuple(workers), latency_ms=tuple(delays), bandwidth_mbps=tuple(rows))


def _cuts() -> list[Row]:
    workload = library.workload("gpt2-xl", MICROBATCHES, 1)
    rows = []
    for count, size in ((1, 8), (8, 8), (40, 25)):
        devices = Devices.of(sites(count, size))
        cut, seconds = _timed(partial(_cut, workload, devices))
        if cut is not None:
            used = len(set(cut.devices))
            rows.append(Row("cut", len(devices), used, seconds, cut.bottleneck_seconds))
    return rows


def _cut(workload: Workload, devices: Devices) -> ChainCut | None:
    return Cutter(workload, WINDOW).cut(devices, SKIPS)


def _fences() -> list[Row]:
    workload = library.workload("gpt2-xl", MICROBATCHES, 1)
    rows = []
    for count, size in ((1, 8), (8, 8), (40, 25)):
        fleet = sites(count, size)
        found, seconds = _timed(partial(opfence, fleet, workload, Options()))
        rows.append(Row("op-fence", count * size, len(found.plan.workers()), seconds, found.step_seconds))
    return rows


def _exact() -> list[Row]:
    workload = library.workload("vit-base", 8, 8)
    rows = []
    for count in (4, 6, 8):
        fleet = sites(count // 2, 2)
        found, seconds = _timed(partial(exact, fleet, workload, Options()))
        rows.append(Row("exact", count, len(found.plan.workers()), seconds, found.step_seconds))
        rows.append(Row("exact bound", count, 0, 0.0, found.lower_bound_seconds))
    return rows


def _testbeds() -> list[Row]:
    workload = workload_of(capture_shapes(load_job(EXAMPLE)).graph, 8, 4)
    rows = []
    for name in ("four-homes", "two-sites", "three-sites", "good-wan", "lan", "eight-homes"):
        topology = load_testbed(name)
        options = Options(workers=len(topology.workers))
        for scheduler in (equal_count, equal_compute, opfence, exact):
            found, seconds = _timed(partial(scheduler, topology, workload, options))
            what = f"{name} {found.scheduler}"
            rows.append(Row(what, len(topology.workers), options.workers or 0, seconds, found.step_seconds))
            if found.lower_bound_seconds:
                rows.append(Row(f"{name} bound", len(topology.workers), 0, 0.0, found.lower_bound_seconds))
    return rows


def _timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    begin = time.process_time()
    return work(), time.process_time() - begin


if __name__ == "__main__":
    main()
