"""The race on devices as fast as GPUs, at true scale: seconds of a step of a model that fits no card.

On two cores nothing computes as fast as eight GPUs. So devices take the time of real ones and compute
nothing; all else is real: packets on lines of true rate and latency in the lab, farflung's own broker,
workers, frames and commits, and the ranks of `torch.distributed.pipelining` over gloo. Nothing is scaled.

A stock user chooses the cards that hold the model, in one room or in several, and the microbatches
(`benchmarks/race/opponents.py`); farflung's planner chooses among all cards. A codec of farflung's writes as
many bytes as it declares and takes the time that it declares for one CPU core; what it really takes on this
machine is measured beside that. A stock user's rounding takes no time. There are no losses: a ratio is one of
steps.

    sudo python benchmarks/emulated.py SETTING [--codec PAIR]... [--peers NAMES] [--quick] [--json]
    python benchmarks/emulated.py SETTING --simulate     # both sides by simulation, without a lab

`--quick` races once and stays under twenty minutes; with `--keep FOLDER` a race that was interrupted goes on
with the next leg. Needs root and /dev/net/tun, except for `--simulate`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, one_of, whole
from benchmarks.race.cards import SETTINGS, Fleet, fleet_of, planned, require_carried
from benchmarks.race.cards_result import Result, lines, result
from benchmarks.race.ground import LabGround
from benchmarks.race.kept import keep_leg, kept_leg, key_of
from benchmarks.race.leg import Leg
from benchmarks.race.opponents import Choice, chosen
from benchmarks.race.schedules import PIPELINES
from benchmarks.race.systems import (
    Emulated,
    entered,
    is_ours,
    race,
    run_folder,
    rung_of,
)

from farflung.errors import FarflungError
from farflung.lab.machine import check_machine
from farflung.lab.network import Network
from farflung.lab.run.emulation import EmulatedJob, Emulation
from farflung.lab.run.layout import lay_out
from farflung.plans import Plan, Topology, subtopology

WARMUP = 1
CODECS = ("auto", "int8", "axes3/axes30-dithered")
PEERS = "gpipe,gpipe-bf16,gpipe-int8,1f1b-int8,zero-bubble-int8"
QUICK_STEPS, STEPS = 2, 3


def main() -> int:
    """Race, and print what came of it; 1 if an argument or the machine does not allow it."""
    options = arguments()
    try:
        found = compete(options, checked(options))
    except (FarflungError, RuntimeError) as error:
        print(f"emulated.py: {error}", file=sys.stderr)
        return 1
    for line in lines(found):
        tell(line)
    if options.json:
        print(msgspec.json.encode(found).decode())
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", type=one_of(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument(
        "--codec", action="append", metavar="PAIR", help=f"race farflung so (default: {', '.join(CODECS)})"
    )
    parser.add_argument("--peers", default=PEERS, help="opponents by commas (default: %(default)s)")
    parser.add_argument("--rounds", type=whole, help="how often the sides alternate (default: 2)")
    parser.add_argument("--steps", type=whole, help="measured steps of a round, after one of warm-up")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one round, under twenty minutes")
    size.add_argument("--simulate", action="store_true", help="both sides by simulation alone")
    parser.add_argument(
        "--keep", type=folder_path, help="folder for runs and logs (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(argv)


def checked(options: argparse.Namespace) -> list[str]:
    """Check all arguments before anything is captured, planned or started: who races.

    Raises
    ------
    RuntimeError, FarflungError
        One of them cannot be raced, or this machine has no lab.
    """
    systems = entered(options.codec or CODECS, options.peers, PIPELINES)
    for name in systems:
        if "@" in name:
            raise RuntimeError(f"{name}: here an opponent's microbatches are tuned, leave out {name[-3:]!r}")
    if not options.simulate:
        check_machine()
    return systems


def compete(options: argparse.Namespace, systems: Sequence[str]) -> Result:
    """Plan both sides, then all rounds, sides in turn."""
    setting = SETTINGS[options.setting]
    fleet = fleet_of(setting)
    plans = {name: planned(fleet, rung_of(name)) for name in systems if is_ours(name)}
    choices = {name: choice_of(fleet, name) for name in systems if not is_ours(name)}
    if options.simulate:
        return result(fleet, plans, choices, [])
    require_carried(fleet, plans, choices)
    rounds = options.rounds or (1 if options.quick else 2)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    legs = []
    with run_folder(options.keep) as kept:
        for number in range(rounds):
            for name in systems if number % 2 == 0 else systems[::-1]:
                folder = kept / f"{number}-{name}".replace("/", "+").replace(" ", "-")
                legs.append(leg_of(name, fleet, plans, choices, steps, folder))
                if is_ours(name):  # the broker plans anew
                    plans[name] = msgspec.json.decode((folder / "run" / "plan.json").read_bytes(), type=Plan)
    return result(fleet, plans, choices, legs)


def choice_of(fleet: Fleet, pipeline: str) -> Choice:
    """What the stock user chooses for this pipeline."""
    return chosen(pipeline, fleet.topology, fleet.course, fleet.flops, fleet.parameters)


def leg_of(
    system: str,
    fleet: Fleet,
    plans: dict[str, Plan],
    choices: dict[str, Choice],
    steps: int,
    folder: Path,
) -> Leg:
    """One leg of one system on the cards that it has chosen, each in a namespace of its own."""
    course = msgspec.structs.replace(fleet.course, steps=WARMUP + steps)
    if is_ours(system):
        course = msgspec.structs.replace(course, codec=rung_of(system))
        place = _place(fleet.topology, sorted(plans[system].workers(), key=fleet.topology.ids.index))
        tflops = {worker.id: worker.tflops for worker in place.workers}
        job: EmulatedJob | None = EmulatedJob(fleet.program, place, Emulation(tflops, 1.0, 1.0, 0.0))
    else:
        choice = choices[system]
        course = msgspec.structs.replace(course, microbatches=choice.microbatches)
        place, job = _place(fleet.topology, choice.workers), None
    tflops = {worker.id: worker.tflops for worker in place.workers}
    with Network(lay_out(place)) as network:
        ground = LabGround(network, place)
        key = key_of(system, ground, course, WARMUP)
        if (kept := kept_leg(folder, key)) is not None:
            return kept
        leg = race(system, ground, course, folder, WARMUP, Emulated(tflops, fleet.flops, job))
    keep_leg(folder, key, leg)
    seconds = ", ".join(f"{each:.2f}" for each in leg.seconds)
    tell(f"{system} took {seconds} s a step" + "; VOID" * leg.void)
    return leg


def _place(topology: Topology, workers: Sequence[str]) -> Topology:
    return subtopology(topology, [topology.ids.index(worker) for worker in workers])


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
