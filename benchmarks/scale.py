"""How auto grows with the fleet: CPU seconds and peak memory of one plan, 8 to 1,000 workers.

    python -m benchmarks.scale [--sizes 8,16,...] [--budget 400] [--json]

The model is a GPT of 86 layers, 1,300 operators (`--model` takes any of benchmarks/models); the fleets are
`random_fleets.sited_fleet` with a site for every 25 workers, at least 4. Every size runs in a process of its
own, so that peak memory is that size's: interpreter, libraries and model included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import several, whole
from benchmarks.models.library import MODELS, workload
from benchmarks.random_fleets import sited_fleet

from farflung.planner.assignment import Options
from farflung.planner.schedulers.auto import auto

SIZES = (8, 16, 32, 64, 125, 250, 500, 1000)
PER_SITE = 25
LEAST_SITES = 4
MICROBATCHES = 32


@dataclass(frozen=True)
class Row:
    """One size."""

    workers: int
    sites: int
    operators: int
    cpu_seconds: float
    peak_megabytes: float
    step_seconds: float
    gap: float | None
    used: int
    evaluated: int


def measured(size: int, model: str, budget: int) -> Row:
    """Plan for one fleet in this process."""
    sites = max(LEAST_SITES, size // PER_SITE)
    fleet, work = sited_fleet(size, sites), workload(model, MICROBATCHES, 1)
    begin = time.process_time()
    schedule = auto(fleet, work, Options(budget=budget))
    return Row(
        workers=size,
        sites=sites,
        operators=len(work),
        cpu_seconds=round(time.process_time() - begin, 2),
        peak_megabytes=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        step_seconds=round(schedule.step_seconds, 4),
        gap=None if schedule.gap is None else round(schedule.gap, 3),
        used=len(schedule.plan.workers()),
        evaluated=schedule.evaluated,
    )


def apart(size: int, model: str, budget: int) -> Row:
    """Plan for one fleet in a process of its own."""
    command = [sys.executable, __file__, "--one", str(size), "--model", model, "--budget", str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Row(**json.loads(done.stdout))


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=several(whole), default=",".join(map(str, SIZES)))
    parser.add_argument("--model", choices=MODELS, default="gpt-86")
    parser.add_argument("--budget", type=whole, default=400)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=whole, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(asdict(measured(arguments.one, arguments.model, arguments.budget))))
        return
    rows = []
    for size in map(int, arguments.sizes.split(",")):
        rows.append(apart(size, arguments.model, arguments.budget))
        if not arguments.json:
            print(rows[-1], flush=True)
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
