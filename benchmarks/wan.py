"""The race: farflung beside `torch.distributed` on one emulated network, to a loss that was fixed beforehand.

Every system trains the same model on the same data with the same batch, optimizer and seed, each rank or
worker in a network namespace of its own; sides alternate. Seconds of a step are measured here. Steps to the
target were counted without a network (`python -m benchmarks.race.count`), on five seeds, and belong to a
system if its first losses here are those that were counted. `--quick` races once and stays under twenty
minutes; with `--keep FOLDER` a race that was interrupted goes on with the next leg; `--full` also trains
farflung to the target in the lab, as a proof. Needs root and /dev/net/tun, except for `--testbed loopback`.

Opponents (`--peers`): `gpipe`, `1f1b`, `interleaved`, `zero-bubble` and `zero-bubble-v`, each also with
boundaries in `-bf16` or `-int8`, and with other microbatches (`1f1b-int8@16`); `ddp` and `ddp-powersgd`;
`alone`, one process on one machine.

With `--adapter RANK` the model is frozen, and only LoRA adapters of that rank are trained, of every block or
of the last `--adapter-blocks`; their steps are not counted, so a race of them is of seconds of a step.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import file_that_exists, folder_path, picture_file, whole
from benchmarks.race import report
from benchmarks.race.bounds import Bound, naive_bound, schedule_bound
from benchmarks.race.counting.corpus import built_in
from benchmarks.race.counting.counts import FILE, Counted, What, counted, kept_runs, what_of
from benchmarks.race.counting.store import Run
from benchmarks.race.course import COURSE, Course
from benchmarks.race.ground import LOOPBACK, Ground, LabGround, LoopbackGround, congestion_control
from benchmarks.race.kept import keep_leg, kept_leg, key_of
from benchmarks.race.leg import Leg
from benchmarks.race.result import AUTO, Proof, Result, proof, result
from benchmarks.race.schedules import PIPELINES, parts_of
from benchmarks.race.systems import (
    ALONE,
    BASELINES,
    FARFLUNG,
    POWERSGD,
    base_of,
    course_of,
    entered,
    is_ours,
    race,
    require_possible,
    run_folder,
)

from farflung.errors import FarflungError
from farflung.lab.network import Network
from farflung.lab.run.layout import lay_out
from farflung.pictures.figure import write_picture
from farflung.plans import Plan, Topology
from farflung.plans.testbeds.catalogue import find_topology

LOOPBACK_NODES = 4
PEERS = "gpipe,1f1b,zero-bubble,gpipe-bf16,gpipe-int8,alone"
CODECS = ("auto",)


@dataclass(frozen=True)
class Mode:
    """How much is measured: each round has steps of warm-up and measured ones."""

    name: str
    rounds: int
    warmup: int
    steps: int


QUICK = Mode("quick", 1, 1, 3)
NORMAL = Mode("normal", 2, 2, 3)
FULL = Mode("full", 2, 2, 3)


@dataclass(frozen=True)
class Entry:
    """A race whose arguments were all checked, before its first second."""

    topology: Topology | None
    systems: list[str]
    course: Course
    mode: Mode
    runs: list[Run]


def main() -> int:
    """Race, and print what came of it; 1 if the machine or the testbed does not allow it."""
    options = arguments()
    try:
        found = compete(options, checked(options))
    except (FarflungError, RuntimeError) as error:
        print(f"wan.py: {error}", file=sys.stderr)
        return 1
    report.show(found)
    if options.picture is not None:
        write_picture(report.picture(found), options.picture)
    if options.json:
        print(msgspec.json.encode(found).decode())
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--testbed", required=True, help="a shipped testbed, a topology file, or loopback")
    parser.add_argument("--peers", default=PEERS, help="opponents by commas (default: %(default)s)")
    parser.add_argument(
        "--codec", action="append", metavar="PAIR", help="race farflung so, too (default: auto); repeatable"
    )
    parser.add_argument("--adapter", type=int, default=0, metavar="RANK", help="train LoRA adapters alone")
    parser.add_argument("--adapter-blocks", type=int, metavar="N", help="of the last N blocks (default: all)")
    parser.add_argument("--rounds", type=whole, help="how often the sides alternate")
    parser.add_argument("--steps", type=whole, help="measured steps of a round, after those of warm-up")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one round, under twenty minutes")
    size.add_argument("--full", action="store_true", help="train farflung to the target in the lab, too")
    parser.add_argument(
        "--counts", type=file_that_exists, default=FILE, help="counted runs (default: this repository's)"
    )
    parser.add_argument("--picture", type=picture_file, help="write loss over time there, as SVG")
    parser.add_argument(
        "--keep", type=folder_path, help="folder for runs and logs (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def checked(options: argparse.Namespace) -> Entry:
    """Check all arguments, which takes no time to speak of.

    Raises
    ------
    RuntimeError, FarflungError
        One of them cannot be raced.
    """
    mode = QUICK if options.quick else FULL if options.full else NORMAL
    mode = replace(mode, rounds=options.rounds or mode.rounds, steps=options.steps or mode.steps)
    course = _adapted(COURSE, options)
    systems = entered(options.codec or CODECS, options.peers, BASELINES)
    topology = None if options.testbed == LOOPBACK else find_topology(options.testbed)
    require_possible(systems, len(topology.workers) if topology else LOOPBACK_NODES, course)
    return Entry(topology, systems, course, mode, kept_runs(options.counts))


def compete(options: argparse.Namespace, entry: Entry) -> Result:
    """All rounds on one ground."""
    mode, course = entry.mode, entry.course
    with run_folder(options.keep) as kept, ground(entry.topology) as place:
        legs: list[Leg] = []
        sprint = msgspec.structs.replace(course, steps=mode.warmup + mode.steps, validate_every=0)
        for number in range(mode.rounds):
            for name in entry.systems if number % 2 == 0 else entry.systems[::-1]:
                legs.append(_leg(name, place, sprint, kept / _folder_name(number, name), mode.warmup))
        counts = {
            name: _counted(name, entry, len(place.nodes), kept / _folder_name(0, name))
            for name in entry.systems
        }
        alone = [each for leg in legs if leg.system == ALONE for each in leg.seconds]
        one_process = sorted(alone)[len(alone) // 2] if alone else 0.0
        bound = _bound(place, kept / f"0-{FARFLUNG}", one_process)
        schedule = _schedule_bound(place, kept / f"0-{FARFLUNG}", one_process)
        control = congestion_control()
        found = result(place.name, mode.name, course, legs, counts, bound, control, schedule)
        if options.full:
            proofs = _prove(found, place, course, kept, counts)
            return msgspec.structs.replace(found, proofs=proofs)
        return found


def _adapted(course: Course, options: argparse.Namespace) -> Course:
    """The course with the adapters that are asked for."""
    rank, layers = options.adapter, course.layers
    blocks = layers if options.adapter_blocks is None else options.adapter_blocks
    if rank < 0 or not 1 <= blocks <= layers:
        raise RuntimeError(
            f"expected a rank, and 1 to {layers} blocks, found --adapter {rank} --adapter-blocks {blocks}"
        )
    if not rank and options.adapter_blocks is not None:
        raise RuntimeError("--adapter-blocks needs --adapter RANK")
    return msgspec.structs.replace(course, adapter_rank=rank, adapter_blocks=blocks) if rank else course


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def ground(topology: Topology | None) -> Iterator[Ground]:
    """The network for as long as the race lasts."""
    if topology is None:
        yield LoopbackGround(LOOPBACK_NODES)
        return
    with Network(lay_out(topology)) as network:
        yield LabGround(network, topology)


def _folder_name(number: int, system: str) -> str:
    return f"{number}-{system}".replace("/", "+").replace(" ", "-")


def _leg(system: str, place: Ground, course: Course, runs: Path, warmup: int) -> Leg:
    key = key_of(system, place, course_of(system, course), warmup)
    if (kept := kept_leg(runs, key)) is not None:
        tell(f"{place.name}: {system} took {kept.median_seconds:.2f} s a step in the race that goes on here")
        return kept
    leg = race(system, place, course_of(system, course), runs, warmup)
    keep_leg(runs, key, leg)
    seconds = ", ".join(f"{each:.2f}" for each in leg.seconds)
    late = f"; VOID, {leg.late_p99_ms:.1f} ms late" if leg.void else ""
    tell(f"{place.name}: {system} took {seconds} s a step{late}")
    return leg


def _counted(system: str, entry: Entry, nodes: int, runs: Path) -> Counted | None:
    """The counted runs of a system, by the plan that it raced with; PowerSGD has none."""
    base = base_of(system)
    if base == POWERSGD:
        return None
    what = What()
    if is_ours(system):
        what = what_of(_plan(runs))
    elif base in PIPELINES and parts_of(base)[1] != "dense":
        schedule, rounding = parts_of(base)
        what = What(schedule.stages * nodes, rounding)
    return counted(entry.runs, what, entry.course, built_in().sha256)


def _bound(place: Ground, runs: Path, one_process: float) -> Bound:
    """The naive bound of dense farflung's plan; the processes share this machine's cores."""
    topology = place.topology if isinstance(place, LabGround) else None
    cores = min(len(place.nodes), os.cpu_count() or 1)
    return naive_bound(_plan(runs), topology, one_process / cores)


def _schedule_bound(place: Ground, runs: Path, one_process: float) -> float | None:
    """The simulator's time for dense farflung's plan, or all cores' if that is more.

    None without a network, or if one machine alone did not race.
    """
    if not isinstance(place, LabGround) or not one_process:
        return None
    cores = min(len(place.nodes), os.cpu_count() or 1)
    return max(schedule_bound(_plan(runs), place.topology, one_process), one_process / cores)


def _plan(runs: Path) -> Plan:
    return msgspec.json.decode((runs / "run" / "plan.json").read_bytes(), type=Plan)


def _prove(
    found: Result, place: Ground, course: Course, kept: Path, counts: dict[str, Counted | None]
) -> list[Proof]:
    """Farflung, with `auto` if that raced, trains as many steps as it needs to the target."""
    proofs = []
    for name in [AUTO] if AUTO in found.systems else [FARFLUNG]:
        steps, known = found.systems[name].steps_to_target, counts[name]
        if steps is None or known is None:
            tell(f"{name} is not proven in the lab: its steps to the target are not known")
            continue
        whole = msgspec.structs.replace(course, steps=round(steps), validate_every=0)
        proofs.append(proof(_leg(name, place, whole, kept / f"whole-{_folder_name(0, name)}", 0), known))
    return proofs


if __name__ == "__main__":
    sys.exit(main())
