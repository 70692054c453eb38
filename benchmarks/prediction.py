"""What the simulator says of a step, beside what the lab measures.

For each testbed and scheduler the race's model trains on emulated devices in the lab (root, Linux): they
compute nothing, so what is measured is the runtime and its links, not this machine's cores. The simulator
gets the same plan and the topology as slow as the lab made it. Exits 1 if a step is more than 10 % off.

    sudo python benchmarks/prediction.py [--testbeds four-homes,good-wan] [--steps 6] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, name_of_testbed, one_of, several, whole
from benchmarks.race.course import Course
from benchmarks.race.systems import job_file

from farflung.pictures.figure import write_picture
from farflung.pictures.timeline import draw_timeline
from farflung.planner.registry import SCHEDULERS
from farflung.plans import Plan, Topology
from farflung.plans.testbeds.catalogue import load_testbed
from farflung.simulator import simulate

TESTBEDS = ("four-homes", "two-sites", "good-wan", "three-sites", "eight-homes")
MOST_OFF = 0.10
WARM_UP = 1  # the first step also waits for its inputs


@dataclass(frozen=True)
class Row:
    """A testbed and a plan: a step in seconds as simulated, the median and spread of what was measured."""

    testbed: str
    scheduler: str
    predicted_seconds: float
    median_seconds: float
    least_seconds: float
    most_seconds: float
    steps: int
    bottleneck: str
    slower_than_life: float
    void: bool

    @property
    def off(self) -> float:
        """How far the median is from the prediction, relative to it."""
        return self.median_seconds / self.predicted_seconds - 1


def measure(testbed: str, scheduler: str, course: Course, folder: Path, pictures: Path | None) -> Row:
    """Train in the lab, then simulate the plan that the run had."""
    run = folder / scheduler / testbed / "run"
    run.parent.mkdir(parents=True)
    arguments = ["lab", "run", str(job_file(course, run)), "--topology", testbed, "--out", str(run)]
    arguments += ["--scheduler", scheduler, "--emulate-devices", "--efficiency", "1", "--json"]
    done = subprocess.run([sys.executable, "-m", "farflung", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    lab = json.loads(done.stdout)["lab"]
    divisor = lab["emulation"]["divisor"]
    plan = msgspec.json.decode((run / "plan.json").read_bytes(), type=Plan)
    found = simulate(plan, slower(load_testbed(testbed), divisor), timeline=True)
    if pictures is not None:
        title = f"A step on {testbed}, planned by {scheduler}, simulated"
        write_picture(draw_timeline(found, title), pictures / f"gantt-{testbed}-{scheduler}.svg")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows if "seconds" in row][WARM_UP:]
    return Row(
        testbed=testbed,
        scheduler=scheduler,
        predicted_seconds=found.step_seconds,
        median_seconds=statistics.median(seconds),
        least_seconds=min(seconds),
        most_seconds=max(seconds),
        steps=len(seconds),
        bottleneck=found.line(),
        slower_than_life=divisor,
        void=lab["void"],
    )


def slower(topology: Topology, divisor: float) -> Topology:
    """What the lab made of a topology: lines and devices are slower, latencies what they were."""
    if divisor == 1:
        return topology
    lines = topology.slower(divisor, "all rates")
    devices = tuple(
        msgspec.structs.replace(worker, tflops=worker.tflops / divisor) for worker in lines.workers
    )
    return msgspec.structs.replace(lines, workers=devices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--testbeds", type=several(name_of_testbed), default=",".join(TESTBEDS), help="default: %(default)s"
    )
    parser.add_argument(
        "--schedulers",
        type=several(one_of(SCHEDULERS)),
        default="auto,equal-compute",
        help="default: %(default)s",
    )
    parser.add_argument("--steps", type=whole, default=6, help="the first is warm-up; default: %(default)s")
    parser.add_argument(
        "--pictures", type=folder_path, help="draw each simulated step into this folder, as SVG"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    course = msgspec.structs.replace(Course(), steps=options.steps)
    rows = []
    with tempfile.TemporaryDirectory(prefix="farflung-prediction-") as name:
        for testbed, scheduler in product(options.testbeds.split(","), options.schedulers.split(",")):
            row = measure(testbed, scheduler, course, Path(name), options.pictures)
            rows.append(row)
            print(
                f"{row.testbed}, {row.scheduler}: {row.median_seconds:.3f} s a step ({row.least_seconds:.3f}-"
                f"{row.most_seconds:.3f} in {row.steps}), predicted {row.predicted_seconds:.3f}"
                f" ({row.off:+.1%}); {row.bottleneck}" + "; VOID: the switch was late" * row.void,
                file=sys.stderr,
                flush=True,
            )
    ok = all(abs(row.off) <= MOST_OFF and not row.void for row in rows)
    if options.json:
        print(json.dumps({"testbeds": [{**asdict(row), "off": row.off} for row in rows], "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
