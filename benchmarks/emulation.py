"""What an emulated fleet costs, and whether its steps take as long as the simulator says.

Two emulated workers in the lab (root, Linux) train a chain of equal layers, once where devices are the
bottleneck and once where the line between them is. Then 48 emulated workers on loopback: memory and CPU time,
idle and training. Exits 1 if a step is more than 10 % off its prediction.

    sudo python benchmarks/emulation.py [--json] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from torch import Tensor, nn

import farflung
from farflung.client.api.job import Job
from farflung.client.capture.check import capture_shapes
from farflung.client.capture.prepared import prepare_emulated
from farflung.client.output.progress import Observer
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.broker_client import ask_status
from farflung.client.run.submitter import Submitter
from farflung.localhost.fleet import LocalFleet
from farflung.opdag import wire
from farflung.plans import Plan, Topology, WorkerSpec, write_topology
from farflung.simulator import simulate

MICROBATCHES, SEQUENCE, WIDTH, LAYERS = 8, 128, 1024, 8
MOST_OFF = 0.10
FLEET = 48


class Chain(nn.Module):
    """Equal layers in a row, fed by one number a place, so that hardly anything comes from the feeder."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[..., None].expand(-1, -1, WIDTH)).square().mean()


class Ramp:
    """The same numbers again and again."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.arange(SEQUENCE, dtype=torch.float32)}


def job(layers: int = LAYERS) -> Job:
    """What `farflung lab run` reads from this file: nothing of it is ever computed."""
    with torch.device("meta"):
        model = Chain()
        model.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    return Job(
        model=model,
        data=Ramp(),
        optimizer=farflung.SGD(lr=0.1),
        batch=MICROBATCHES,
        microbatches=MICROBATCHES,
        steps=6,
    )


@dataclass(frozen=True)
class Case:
    """Two workers on one line."""

    name: str
    bandwidth_mbps: float
    latency_ms: float
    tflops: float


CASES = [
    Case("devices are the bottleneck", 200.0, 5.0, 0.02),
    Case("the line is the bottleneck", 8.0, 50.0, 0.5),
]


@dataclass(frozen=True)
class Timing:
    """A case's step in seconds: simulated, and the median and spread of what was measured."""

    name: str
    predicted_seconds: float
    median_seconds: float
    least_seconds: float
    most_seconds: float
    void: bool

    @property
    def off(self) -> float:
        """How far the median is from the prediction, relative to it."""
        return self.median_seconds / self.predicted_seconds - 1


def measure(case: Case, folder: Path) -> Timing:
    """Run a case in the lab."""
    workers = tuple(WorkerSpec(id, id, case.tflops, 8.0) for id in ("first", "second"))
    latency = ((0.0, case.latency_ms), (case.latency_ms, 0.0))
    bandwidth = ((0.0, case.bandwidth_mbps), (case.bandwidth_mbps, 0.0))
    topology = Topology(workers, latency, bandwidth)
    write_topology(topology, folder / "two.json")
    arguments = ["lab", "run", __file__, "--topology", str(folder / "two.json"), "--out", str(folder / "run")]
    arguments += ["--emulate-devices", "--efficiency", "1", "--scale", "1", "--json"]
    done = subprocess.run([sys.executable, "-m", "farflung", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    plan = msgspec.json.decode((folder / "run" / "plan.json").read_bytes(), type=Plan)
    predicted = simulate(plan, topology).step_seconds
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows if "seconds" in row][
        1:
    ]  # the first step also waits for its inputs
    void = json.loads(done.stdout)["lab"]["void"]
    return Timing(case.name, predicted, statistics.median(seconds), min(seconds), max(seconds), void)


@dataclass(frozen=True)
class Cost:
    """Memory in megabytes and CPU time of a whole fleet of emulated workers."""

    workers: int
    resident_megabytes_each: float
    own_megabytes_each: float
    idle_cores: float
    training_cores: float
    training_mbps: float
    seconds_per_step: float


async def fleet_cost(workers: int, folder: Path, idle_seconds: float) -> Cost:
    """Start a fleet on loopback, leave it alone for a while, then train on it."""
    declared = job(layers=workers)
    prepared = prepare_emulated(declared, wire.dump(capture_shapes(declared).graph))
    async with LocalFleet(workers, folder / "logs", 10**9, emulated_tflops=0.02) as fleet:
        await _registered(fleet, workers)
        processes = [psutil.Process(await child.process_id()) for child in fleet.workers]
        await asyncio.sleep(2.0)
        idle = await _cores(processes, asyncio.sleep(idle_seconds))
        memory = [process.memory_full_info() for process in processes]
        run = RunFolder.create(folder / "run")
        submitter = Submitter(prepared, fleet.identity, run, Observer(), workers)
        training = await _cores(processes, submitter.run())
        run.close()
    summary = json.loads((folder / "run" / "summary.json").read_text())
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    step = statistics.median([row["seconds"] for row in rows if "seconds" in row][1:])
    return Cost(
        workers=workers,
        resident_megabytes_each=max(each.rss for each in memory) / 1e6,
        own_megabytes_each=max(each.uss for each in memory) / 1e6,
        idle_cores=idle,
        training_cores=training,
        training_mbps=summary["bytes_on_wire"] * 8e-6 / (step * summary["steps"]),
        seconds_per_step=step,
    )


async def _registered(fleet: LocalFleet, workers: int) -> None:
    for _ in range(120):
        if len((await ask_status(fleet.identity)).workers) == workers:
            return
        await asyncio.sleep(0.5)
    raise SystemExit(f"not all of {workers} workers registered: see {fleet.logs}")


async def _cores(processes: list[psutil.Process], work: Any) -> float:
    """CPU seconds of all processes for each second that `work` takes."""
    before, began = _cpu_seconds(processes), time.monotonic()
    await work
    return (_cpu_seconds(processes) - before) / (time.monotonic() - began)


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="8 workers in place of 48")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="farflung-bench-") as name:
        timings = [measure(case, Path(name)) for case in CASES]
        workers = 8 if options.quick else FLEET
        cost = asyncio.run(fleet_cost(workers, Path(name) / "fleet", 3.0 if options.quick else 10.0))
    ok = all(abs(timing.off) <= MOST_OFF and not timing.void for timing in timings)
    if options.json:
        rows = [{**asdict(timing), "off": timing.off} for timing in timings]
        print(json.dumps({"steps": rows, "fleet": asdict(cost), "ok": ok}))
        return 0 if ok else 1
    for timing in timings:
        print(
            f"{timing.name}: {timing.median_seconds:.3f} s a step ({timing.least_seconds:.3f}-"
            f"{timing.most_seconds:.3f}), predicted {timing.predicted_seconds:.3f} ({timing.off:+.1%})"
            + ", void"
            * timing.void
        )
    print(
        f"{cost.workers} workers: {cost.resident_megabytes_each:.0f} MB resident each,"
        f" {cost.own_megabytes_each:.0f} MB their own; {cost.idle_cores:.3f} cores idle,"
        f" {cost.training_cores:.2f} while {cost.training_mbps:.0f} Mbit/s travel"
        f" ({cost.seconds_per_step:.2f} s a step)"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
