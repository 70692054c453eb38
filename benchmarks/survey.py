"""How right a survey of a live fleet is, and how long it takes, beside the settings of the lab it runs in.

Homes with lines of 8, 20 and 50 Mbit/s in a lab (`farflung.lab`, so this needs root), a broker and one
emulated worker in each. The broker surveys them unasked; the topology that `farflung topology show --fleet`
gives is held against what the lab is set to. Exits 2 if the emulation was late (void).

    python benchmarks/survey.py [--workers 16] [--latency-ms 20] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive, whole

from farflung.lab.network import Network, RunningLab
from farflung.lab.run.fleet import LabFleet
from farflung.lab.run.layout import SUBMITTER, lay_out
from farflung.plans import Topology, WorkerSpec

LINES = ((20.0, 50.0), (8.0, 50.0), (50.0, 50.0), (20.0, 20.0))
LONGEST_SECONDS = 240.0
OFF = 0.1


@dataclass(frozen=True)
class Found:
    """Errors are relative; `seconds` and `megabytes` are those of the survey, as the broker says them."""

    workers: int
    seconds: float
    megabytes: float
    load: float
    median_error: float
    ninth_decile_error: float
    worst_error: float
    ways: int
    ways_off: int
    worst_latency_error_ms: float
    lines_found: int
    worst_line_error: float


def homes(count: int, latency_ms: float) -> Topology:
    """Homes that share nothing but what lies between any two of them."""
    lines = [LINES[number % len(LINES)] for number in range(count)]
    specs = tuple(
        WorkerSpec(f"home-{number}", f"home-{number}", 1.0, 4.0, up, down)
        for number, (up, down) in enumerate(lines)
    )
    rates = tuple(tuple(min(up, down) for _, down in lines) for up, _ in lines)
    return Topology(specs, ((latency_ms,) * count,) * count, rates)


async def surveyed(topology: Topology, network: RunningLab) -> tuple[dict[str, Any], str, float]:
    """What the fleet's topology is said to be, the broker's log, and the load meanwhile."""
    async with LabFleet(
        network, topology.workers, {spec.id: spec.tflops for spec in topology.workers}
    ) as fleet:
        await fleet.start_workers()
        assert fleet.broker is not None
        log, deadline = fleet.broker.log, time.monotonic() + LONGEST_SECONDS
        while "survey: finished" not in log.read_text():
            if time.monotonic() > deadline:
                raise SystemExit(f"no survey within {LONGEST_SECONDS:g} s: {log.read_text()[-2000:]}")
            await asyncio.sleep(0.5)
        load = os.getloadavg()[0]
        return await asyncio.to_thread(_asked, fleet, network), log.read_text(), load


def _asked(fleet: LabFleet, network: RunningLab) -> dict[str, Any]:
    where = ["--broker", fleet.address, "--folder", str(fleet.submitter_folder)]
    command = [sys.executable, "-m", "farflung", "topology", "show", "--fleet", *where, "--json"]
    environment = {**os.environ, "FARFLUNG_TOKEN": fleet.token.text}
    process = network.popen(SUBMITTER, command, env=environment, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(process.communicate()[0])
    return found


def judged(topology: Topology, told: dict[str, Any], log: str, load: float) -> Found:
    """The figures."""
    found = told["topology"]
    place = {spec["id"]: number for number, spec in enumerate(found["workers"])}
    order = [place[spec.id] for spec in topology.workers]
    errors, late = [], []
    for a, b in topology.pairs():
        link, (row, column) = topology.link(a, b), (order[a], order[b])
        errors.append(abs(found["bandwidth_mbps"][row][column] / link.bandwidth_mbps - 1))
        late.append(abs(found["latency_ms"][row][column] - link.latency_ms))
    lines = [
        abs(rate / expected - 1)
        for spec in topology.workers
        for name, expected in (("up_mbps", spec.up_mbps), ("down_mbps", spec.down_mbps))
        if expected and (rate := found["workers"][place[spec.id]].get(name)) is not None
    ]
    seconds, megabytes = map(float, re.findall(r"finished after (\d+) s; (\d+) MB", log)[0])
    errors.sort()
    return Found(
        workers=len(topology.workers),
        seconds=seconds,
        megabytes=megabytes,
        load=load,
        median_error=statistics.median(errors),
        ninth_decile_error=errors[int(0.9 * len(errors))],
        worst_error=errors[-1],
        ways=len(errors),
        ways_off=sum(error > OFF for error in errors),
        worst_latency_error_ms=max(late),
        lines_found=len(lines),
        worst_line_error=max(lines, default=0.0),
    )


def main(arguments: Sequence[str]) -> int:
    """Run it; the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=whole, default=16)
    parser.add_argument("--latency-ms", type=positive, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    topology = homes(options.workers, options.latency_ms)
    with Network(lay_out(topology)) as network:
        told, log, load = asyncio.run(surveyed(topology, network))
        is_void = network.stats().void
    found = asdict(judged(topology, told, log, load))
    if options.json:
        print(json.dumps({**found, "void": is_void}))
    else:
        for name, value in found.items():
            print(f"{name.replace('_', ' '):24} {value:.4g}")
    return 2 if is_void else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
