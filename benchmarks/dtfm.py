"""DT-FM's placement problem: a grid of stages x replicas for a topology, under DT-FM's objective.

    python benchmarks/dtfm.py --topology FILE [--stages 8] [--replicas 8] [--scheduler evolutionary] [--json]
    python benchmarks/dtfm.py --case 5          (one of DT-FM's own five, built by its public rules)

Prints the grid (one row a stage, one column a pipeline), its total as it is wired, a lower bound that holds
for every grid, the gap between the two, and the CPU seconds that the search took. `--json` prints one object:
`{"grid", "total", "lower_bound", "gap", "cpu_seconds", "scheduler", "stages", "replicas", "seed",
"evaluations", "capped"}`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import positive
from benchmarks.dtfm_cases import case

from benchmarks.dtfm_grid import GridObjective, GridResult, evolve_with_bound, place_in_grid
from farflung.errors import FarflungError, PlanError
from farflung.planner.schedulers.evolutionary.grid import ACTIVATION_GB, GRADIENT_GB
from farflung.plans import Topology, read_topology

STAGES = 8
Search = Callable[..., GridResult]
SEARCHES: dict[str, Search] = {"auto": place_in_grid, "evolutionary": evolve_with_bound}


class Report(msgspec.Struct, frozen=True):
    """What the search found, worker ids in the grid; times in seconds."""

    grid: list[list[str]]
    total: float
    lower_bound: float
    gap: float
    cpu_seconds: float
    scheduler: str
    stages: int
    replicas: int
    seed: int
    evaluations: int
    capped: bool


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        topology = case(options.case) if options.case else read_topology(options.topology)
        report = measured(topology, options)
    except FarflungError as error:
        print(f"dtfm: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        _show(topology, report)
    return 0


def measured(topology: Topology, options: argparse.Namespace) -> Report:
    """One search with its CPU seconds. Raises PlanError where the workers do not fill the grid."""
    objective = _objective(len(topology.workers), options)
    limits = {"most_seconds": options.seconds} | ({"budget": options.budget} if options.budget else {})
    started = time.process_time()
    found = SEARCHES[options.scheduler](topology, objective, seed=options.seed, **limits)
    spent = time.process_time() - started
    return Report(
        grid=[[topology.ids[worker] for worker in stage] for stage in found.grid],
        total=found.total,
        lower_bound=found.lower_bound,
        gap=found.gap,
        cpu_seconds=round(spent, 3),
        scheduler=options.scheduler,
        stages=objective.stages,
        replicas=objective.replicas,
        seed=options.seed,
        evaluations=found.evaluations,
        capped=found.capped,
    )


def _objective(workers: int, options: argparse.Namespace) -> GridObjective:
    """The shape that was asked for; what was left out follows from the number of workers."""
    stages, replicas = options.stages, options.replicas
    if stages is None:
        stages = STAGES if replicas is None else max(1, workers // max(1, replicas))
    if replicas is None:
        replicas = max(1, workers // max(1, stages))
    if stages * replicas != workers:
        raise PlanError(
            f"{workers} workers do not fill {stages} stages x {replicas} replicas: "
            f"give --stages and --replicas whose product is {workers}"
        )
    return GridObjective(stages, replicas, options.gradient_gb, options.activation_gb)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help says more)\n")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="dtfm", description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topology", type=Path, metavar="FILE", help="a topology as JSON")
    what.add_argument("--case", type=int, choices=range(1, 6), help="one of DT-FM's five network cases")
    parser.add_argument("--stages", type=int, help=f"rows of the grid (default {STAGES})")
    parser.add_argument("--replicas", type=int, help="columns of the grid (default workers / stages)")
    parser.add_argument("--gradient-gb", type=float, default=GRADIENT_GB, help="gradients of a stage")
    parser.add_argument("--activation-gb", type=float, default=ACTIVATION_GB, help="activations of a hop")
    parser.add_argument("--scheduler", choices=sorted(SEARCHES), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=_positive, help="evaluations (default: the scheduler's own)")
    parser.add_argument(
        "--seconds", type=positive, default=600.0, help="a cap; the report says if it was hit"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {number}")
    return number


def _show(topology: Topology, report: Report) -> None:
    site = {worker.id: worker.site for worker in topology.workers}
    table = Table(title=f"{topology.title or topology.name or 'topology'}: {report.scheduler}")
    table.add_column("stage", justify="right")
    for number in range(report.replicas):
        table.add_column(f"pipeline {number}")
    for number, stage in enumerate(report.grid):
        table.add_row(str(number), *(f"{worker} {site[worker]}".strip() for worker in stage))
    console = Console(width=None if sys.stdout.isatty() else 40 * report.replicas)
    console.print(table)
    console.print(
        f"total {report.total:.4f} s, no grid below {report.lower_bound:.4f} s (gap {report.gap:.4f}), "
        f"{report.cpu_seconds:.2f} CPU s, {report.evaluations} evaluations, seed {report.seed}"
        + (", capped by --seconds: another run may differ" if report.capped else "")
    )


if __name__ == "__main__":
    sys.exit(main())
