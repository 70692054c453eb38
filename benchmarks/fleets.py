"""Schedulers on random fleets, by simulated step time: auto, its rivals, the bound, and `exact`.

    python -m benchmarks.fleets [--first 0] [--instances 200] [--exact 20] [--budget 400] [--rows FILE]
        [--json]

Instance n is fleet `random_fleets.random_fleet(n)` with one of seven captured models in turn, 32
microbatches; one that nobody can plan (too little memory) is skipped and counted. Two answers of auto are
held against the rivals:

* `auto` has their options: one replica, no recomputation, 32 microbatches, the window its own to choose. The
  gap to the lower bound is that of this one.
* `auto-free` also chooses what the others are told: 16, 64 or 128 microbatches of the same batch where there
  are samples for it, up to 8 replicas, recomputation.

Ratios are over instances where the rival has a plan. `exact` is compared on fleets of 4 to 7 workers, as many
as `--exact` says. Times are CPU seconds of this process.

With `--rows FILE` each instance is kept as it is done, and none that is there (of the same budget) is run
again: what was interrupted goes on. Several processes may share the work: `--first 0 --instances 100` and
`--first 100 --instances 100`, each with a file of its own, whose lines together are a file of all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.arguments import file_to_write, whole
from benchmarks.fleet_table import AUTO, EXACT, FREE, RIVALS, Kept, Row, Setting, Summary, summary
from benchmarks.models.library import workload
from benchmarks.random_fleets import random_fleet

from farflung.errors import PlanError
from farflung.planner.assignment import Options, Schedule
from farflung.planner.registry import SCHEDULERS
from farflung.plans import Topology
from farflung.workload import Workload

MOST_REPLICAS = 8
MODELS = (
    ("gpt2-small", 4),
    ("gpt2-medium", 2),
    ("gpt2-xl", 1),
    ("bert-large", 4),
    ("resnet-101", 16),
    ("vit-base", 16),
    ("gpt3-24", 1),
)
SMALL = (("vit-base", 16), ("resnet-101", 16))  # untied, and few enough places to cut for `exact`
FIRST_SMALL = 10_000
MICROBATCHES = 32


class Document(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    summary: Summary
    rows: list[Row]


@cache
def model(name: str, samples: int) -> Workload:
    """A model in the microbatches that every scheduler is told."""
    return workload(name, MICROBATCHES, samples)


@cache
def others(name: str, samples: int) -> tuple[Workload, ...]:
    """The same batch in other numbers of microbatches."""
    batch = MICROBATCHES * samples
    counts = [n for n in (MICROBATCHES // 2, 2 * MICROBATCHES, 4 * MICROBATCHES) if batch % n == 0]
    return tuple(workload(name, count, batch // count) for count in counts)


def instance(seed: int, setting: Setting) -> Row:
    """Plan one fleet by everybody."""
    name, samples = MODELS[seed % len(MODELS)]
    options = Options(budget=setting.budget)
    free = replace(options, alternatives=others(name, samples), most_replicas=MOST_REPLICAS, recompute=True)
    return run(seed, setting, random_fleet(seed), model(name, samples), RIVALS, free)


def small_instance(seed: int, setting: Setting) -> Row:
    """Plan one small fleet by auto and by the exact scheduler."""
    name, samples = SMALL[seed % len(SMALL)]
    return run(seed, setting, random_fleet(seed, 4, 7), model(name, samples), (EXACT,), None)


def run(
    seed: int,
    setting: Setting,
    topology: Topology,
    work: Workload,
    names: Sequence[str],
    free: Options | None,
) -> Row:
    """Plan one instance by auto, also with the options `free`, and by the schedulers called `names`."""
    options = Options(budget=setting.budget)
    begin = time.process_time()
    ours = planned(AUTO, topology, work, options)
    took = time.process_time() - begin
    seconds: dict[str, float | None] = {AUTO: ours.step_seconds if ours else None}
    if ours is not None:
        if free is not None:
            found = planned(AUTO, topology, work, replace(free, incumbent=ours.assignment))
            seconds[FREE] = found.step_seconds if found else None
        for name in names:
            schedule = planned(name, topology, work, options)
            seconds[name] = schedule.step_seconds if schedule else None
    bound, capped = (ours.lower_bound_seconds, ours.capped) if ours else (0.0, False)
    workers = len(topology.workers)
    return Row(setting, seed, work.name, workers, free is None, seconds, bound, round(took, 3), capped)


def planned(name: str, topology: Topology, work: Workload, options: Options) -> Schedule | None:
    """A scheduler's answer, or None if it has none."""
    try:
        return SCHEDULERS[name](topology, work, options)
    except PlanError:
        return None


def rows_of(arguments: argparse.Namespace) -> Iterator[Row]:
    """All instances that were asked for, from the file of rows or run now."""
    setting = Setting(arguments.budget, MICROBATCHES)
    kept = Kept(arguments.rows, setting)
    for seed in range(arguments.first, arguments.first + arguments.instances):
        yield kept.find(seed, False) or kept.add(instance(seed, setting))
    first = FIRST_SMALL + arguments.first
    for seed in range(first, first + arguments.exact):
        yield kept.find(seed, True) or kept.add(small_instance(seed, setting))


def main(given: Sequence[str] | None = None) -> None:
    """Run the instances and print what came of them; how far it is goes to standard error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first fleet")
    parser.add_argument("--instances", type=whole, default=200)
    parser.add_argument("--budget", type=whole, default=400, help="plans that auto may evaluate")
    parser.add_argument("--exact", type=int, default=20, help="small fleets to hold against `exact`")
    parser.add_argument(
        "--rows", type=file_to_write, metavar="FILE", help="keep each instance there as it is done"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    rows: list[Row] = []
    asked = arguments.instances + arguments.exact
    for row in rows_of(arguments):
        rows.append(row)
        print(f"{progress(len(rows), asked)}  {line(row)}", file=sys.stderr, flush=True)
    document = Document(summary(rows), rows)
    shown = document if arguments.json else document.summary
    text = msgspec.json.encode(shown)
    print((text if arguments.json else msgspec.json.format(text)).decode())


def progress(done: int, asked: int) -> str:
    """How far it is, and the CPU seconds that it took so far."""
    cells = round(20 * done / max(asked, 1))
    return f"[{'#' * cells:.<20}] {done}/{asked} {time.process_time():6.0f} s"


def line(row: Row) -> str:
    """One instance in a line."""
    own = row.seconds[AUTO]
    what = f"{row.seed:5d} {row.model:12s} {row.workers:3d} workers"
    if own is None:
        return f"{what}  no plan"
    ratios = [(name, ratio) for name in (*RIVALS, EXACT) if (ratio := row.ratio(name)) is not None]
    rivals = "  ".join(f"{name} {ratio:.3g}x" for name, ratio in ratios)
    free = f"  free {row.seconds[FREE]:.3f} s" if row.seconds.get(FREE) else ""
    return f"{what}  {own:9.3f} s  gap {row.gap:5.2f}{free}  {rivals}"


if __name__ == "__main__":
    main()
