"""The race: farflung beside GPipe, 1F1B and DDP of `torch.distributed` on one emulated network.

Every system trains the same model on the same data with the same batch, microbatches, optimizer and seed,
each rank or worker in a network namespace of its own; sides alternate. `--quick` takes a smaller model and
fewer steps and stays under ten minutes; `--full` also trains the whole course in the lab, as a proof. Needs
root and /dev/net/tun; `--testbed loopback` needs neither.

With `--codec RUNG`, which may be repeated, farflung also races with its links written so. Its losses differ
then, so its steps to the target are counted in a run of its own without a network, on the plain model.

With `--adapter RANK` the model is frozen, and only LoRA adapters of that rank are trained, of every block or
of the last `--adapter-blocks`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.race import report
from benchmarks.race.bounds import Bound, naive_bound, schedule_bound
from benchmarks.race.coded import coded_reference
from benchmarks.race.course import Course
from benchmarks.race.ground import LOOPBACK, Ground, LabGround, LoopbackGround, congestion_control
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference, reference
from benchmarks.race.result import PIPELINES, Proof, Result, proof, result
from benchmarks.race.systems import BASELINES, FARFLUNG, entered, race, run_folder, rung_of

from farflung.errors import FarflungError
from farflung.lab.network import Network
from farflung.lab.run.layout import lay_out
from farflung.pictures.figure import check_picture, write_picture
from farflung.plans import Plan
from farflung.plans.testbeds.catalogue import find_topology

LOOPBACK_NODES = 4


@dataclass(frozen=True)
class Mode:
    """How much is measured: `course` trains to the target; each round has warm-up and measured steps."""

    name: str
    course: Course
    rounds: int
    warmup: int
    steps: int


QUICK = Mode(
    "quick", Course(width=128, sequence=128, steps=100, learning_rate=2e-3, validate_every=10), 2, 2, 3
)
NORMAL = Mode("normal", Course(steps=60, validate_every=5), 2, 2, 3)
FULL = Mode("full", NORMAL.course, 2, 2, 3)


def main() -> int:
    """Race, and print what came of it; 1 if the machine or the testbed does not allow it."""
    options = arguments()
    try:
        if options.picture is not None:
            check_picture(options.picture)
        found = compete(options)
    except (FarflungError, RuntimeError) as error:
        print(f"wan.py: {error}", file=sys.stderr)
        return 1
    report.show(found)
    if options.picture is not None and found.systems:
        write_picture(report.picture(found), options.picture)
    if options.json:
        print(msgspec.json.encode(found).decode())
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--testbed", required=True, help="a shipped testbed, a topology file, or loopback")
    parser.add_argument("--peers", default=",".join(BASELINES), help="baselines to race: %(default)s")
    parser.add_argument(
        "--codec", action="append", default=[], metavar="RUNG", help="race farflung with these codecs, too"
    )
    parser.add_argument("--adapter", type=int, default=0, metavar="RANK", help="train LoRA adapters alone")
    parser.add_argument("--adapter-blocks", type=int, metavar="N", help="of the last N blocks (default: all)")
    parser.add_argument("--rounds", type=int, help="how often the sides alternate")
    parser.add_argument("--steps", type=int, help="measured steps of a round, after 2 of warm-up")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a smaller model, under ten minutes")
    size.add_argument("--full", action="store_true", help="train the whole course in the lab, too")
    parser.add_argument("--picture", type=Path, help="write loss over time there, as SVG")
    parser.add_argument("--keep", type=Path, help="folder for runs and logs (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def compete(options: argparse.Namespace) -> Result:
    """All rounds on one ground."""
    mode = _adapted(QUICK if options.quick else FULL if options.full else NORMAL, options)
    rounds, measured = options.rounds or mode.rounds, options.steps or mode.steps
    systems = entered(options.codec, options.peers, BASELINES)
    ours = [name for name in systems if name not in BASELINES]
    with run_folder(options.keep) as kept, ground(options.testbed) as place:
        cache = Path(tempfile.gettempdir()) / "farflung-race"
        known = reference(mode.course, cache, tell)
        legs: list[Leg] = []
        sprint = msgspec.structs.replace(mode.course, steps=mode.warmup + measured, validate_every=0)
        for number in range(rounds):
            for name in systems if number % 2 == 0 else systems[::-1]:
                legs.append(_leg(name, place, sprint, kept / _folder_name(number, name), mode.warmup))
        references = {
            name: coded_reference(_with(mode.course, name), _plan(kept / _folder_name(0, name)), cache, tell)
            for name in ours[1:]
        }
        bound = _bound(place, kept / f"0-{FARFLUNG}", known)
        schedule = _schedule_bound(place, kept / f"0-{FARFLUNG}", known)
        control = congestion_control()
        found = result(place.name, mode.name, sprint, legs, known, references, bound, control, schedule)
        if options.full:
            proofs = _prove(found, place, mode.course, kept, {FARFLUNG: known, **references})
            return msgspec.structs.replace(found, proofs=proofs)
        return found


def _adapted(mode: Mode, options: argparse.Namespace) -> Mode:
    """The mode with the adapters that are asked for."""
    rank, layers = options.adapter, mode.course.layers
    blocks = layers if options.adapter_blocks is None else options.adapter_blocks
    if rank < 0 or not 1 <= blocks <= layers:
        raise RuntimeError(
            f"expected a rank, and 1 to {layers} blocks, found --adapter {rank} --adapter-blocks {blocks}"
        )
    if not rank and options.adapter_blocks is not None:
        raise RuntimeError("--adapter-blocks needs --adapter RANK")
    if not rank:
        return mode
    return replace(
        mode, course=msgspec.structs.replace(mode.course, adapter_rank=rank, adapter_blocks=blocks)
    )


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def ground(testbed: str) -> Iterator[Ground]:
    """The network for as long as the race lasts."""
    if testbed == LOOPBACK:
        yield LoopbackGround(LOOPBACK_NODES)
        return
    topology = find_topology(testbed)
    with Network(lay_out(topology)) as network:
        yield LabGround(network, topology)


def _with(course: Course, system: str) -> Course:
    return msgspec.structs.replace(course, codec=rung_of(system))


def _folder_name(number: int, system: str) -> str:
    return f"{number}-{system}".replace("/", "+").replace(" ", "-")


def _leg(system: str, place: Ground, course: Course, runs: Path, warmup: int) -> Leg:
    leg = race(system, place, _with(course, system), runs, warmup)
    seconds = ", ".join(f"{each:.2f}" for each in leg.seconds)
    late = f"; VOID, {leg.late_p99_ms:.1f} ms late" if leg.void else ""
    tell(f"{place.name}: {system} took {seconds} s a step{late}")
    return leg


def _bound(place: Ground, runs: Path, known: Reference) -> Bound:
    """The naive bound of farflung's plan; the processes share this machine's cores."""
    plan = _plan(runs)
    topology = place.topology if isinstance(place, LabGround) else None
    cores = min(len(place.nodes), os.cpu_count() or 1)
    return naive_bound(plan, topology, known.seconds_per_step / cores)


def _schedule_bound(place: Ground, runs: Path, known: Reference) -> float | None:
    """The simulator's time for farflung's plan, or all cores' if that is more; None without a network."""
    if not isinstance(place, LabGround):
        return None
    cores = min(len(place.nodes), os.cpu_count() or 1)
    simulated = schedule_bound(_plan(runs), place.topology, known.seconds_per_step)
    return max(simulated, known.seconds_per_step / cores)


def _plan(runs: Path) -> Plan:
    return msgspec.json.decode((runs / "run" / "plan.json").read_bytes(), type=Plan)


def _prove(
    found: Result, place: Ground, course: Course, kept: Path, known: dict[str, Reference]
) -> list[Proof]:
    """Farflung, as it is in `known`, and the faster pipeline over the whole course."""
    rivals = [name for name in PIPELINES if name in found.systems]
    fastest = sorted(rivals, key=lambda name: found.systems[name].seconds_per_step)[:1]
    return [
        proof(_leg(name, place, course, kept / f"whole-{_folder_name(0, name)}", warmup=0), reference)
        for name, reference in [*known.items(), *((name, known[FARFLUNG]) for name in fastest)]
    ]


if __name__ == "__main__":
    sys.exit(main())
