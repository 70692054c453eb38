"""The race with devices as fast as GPUs: steps to a loss, times seconds of a step on an emulated network.

On two cores nothing computes as fast as eight GPUs. So steps to the target loss are counted in one process,
with the codec and without a network, and seconds of a step are measured in the lab, where devices take the
time of real ones and compute nothing: real links, real messages, farflung's own workers, and the ranks of
`torch.distributed.pipelining` over gloo. A score is the best opponent's time over farflung's. Codecs write
as many bytes and take as long as they declare (one core; a GPU is faster). Needs root and /dev/net/tun.

    sudo python benchmarks/emulated.py SETTING [--codec RUNG]... [--json]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path
from benchmarks.race.course import Course
from benchmarks.race.ground import LabGround
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference, coded_reference, reference
from benchmarks.race.schedules import SCHEDULES
from benchmarks.race.systems import (
    ALONE,
    FARFLUNG,
    Emulated,
    course_of,
    entered,
    is_ours,
    race,
    require_possible,
    run_folder,
    rung_of,
)

from farflung.client.capture.check import capture_shapes
from farflung.errors import FarflungError
from farflung.lab.network import Network
from farflung.lab.run.emulation import emulate_job
from farflung.lab.run.layout import lay_out
from farflung.planner.assignment import Options
from farflung.planner.registry import scheduler
from farflung.plans import Plan, Topology, subtopology
from farflung.plans.testbeds.catalogue import find_topology
from farflung.plans.wishes import AUTO
from farflung.workload import workload_of

WARMUP = 1
PEERS = (*SCHEDULES, ALONE)


@dataclass(frozen=True)
class Setting:
    """A testbed, what is trained on it, and on how many of its workers farflung does that.

    Without a number of `workers` farflung's planner chooses whom it takes; a baseline has a stage on each.
    `tflops` is what each device sustains, None: `efficiency` of what the testbed says. Where a setting has a
    `target` its course is trained, to count steps to a loss; elsewhere only lossless systems race, whose
    losses are those of one process.
    """

    testbed: str
    course: Course
    steps: int
    target: bool
    workers: int | None = None
    tflops: float | None = None
    efficiency: float = 1.0


SETTINGS = {
    # 12 TFLOP/s is what an RTX 3080 sustains (40 % of its peak); the testbed is ten times slower than life.
    "nanogpt": Setting(
        "nanogpt-200",
        Course(width=128, batch=512, microbatches=64, steps=40, learning_rate=2e-3, validate_every=2),
        steps=5, target=True, workers=8, tflops=1.2,
    ),
    # examples/fleet.py's 48 blocks, 340 million parameters: too many to be trained here.
    "fusionllm": Setting(
        "fusionllm-48", Course(layers=48, width=768, heads=12, batch=8, microbatches=8),
        steps=3, target=False, efficiency=0.4,
    ),
}  # fmt: skip


class Raced(msgspec.Struct, frozen=True):
    """One system: a step's seconds in the testbed (median; least and most), and its bytes at the switch.

    The switch cannot carry all that one room of GPUs says: there devices and lines ran `slower` times slower,
    and seconds are those measured over that. So latencies, codecs and what messages take this machine, none
    of which is slower, count that much less than a pipeline's. `score` is the best opponent's time to the
    target over this one's; of a setting without a target, of a step.
    """

    seconds_per_step: float
    spread: tuple[float, float]
    slower: float
    bytes_per_step: float
    cpu_seconds_per_step: float
    late_p99_ms: float
    void: bool
    workers: int | None = None
    steps_to_target: int | None = None
    seconds_to_target: float | None = None
    score: float | None = None


class Result(msgspec.Struct, frozen=True):
    """What one setting gave."""

    setting: str
    testbed: str
    course: Course
    target_loss: float | None
    systems: dict[str, Raced]


def main() -> int:
    """Race, and print what came of it; 1 if the machine does not allow it."""
    options = arguments()
    try:
        found = compete(options)
    except (FarflungError, RuntimeError) as error:
        print(f"emulated.py: {error}", file=sys.stderr)
        return 1
    for line in lines(found):
        print(line, file=sys.stderr)
    if options.json:
        print(msgspec.json.encode(found).decode())
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--codec", action="append", default=[], metavar="RUNG", help="with a target only")
    parser.add_argument("--peers", default="gpipe,1f1b", help="opponents by commas (default: %(default)s)")
    parser.add_argument(
        "--keep", type=folder_path, help="folder for runs and logs (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def compete(options: argparse.Namespace) -> Result:
    """One leg of each system."""
    setting = SETTINGS[options.setting]
    if options.codec and not setting.target:
        raise RuntimeError(f"{options.setting} has no target loss, so only lossless systems can race there")
    systems = entered(options.codec, options.peers, PEERS)
    topology = find_topology(setting.testbed)
    require_possible(systems, len(topology.workers), setting.course)
    if setting.tflops is not None:
        topology = _devices_of(topology, setting.tflops)
    emulated = emulate(setting, topology)
    sprint = msgspec.structs.replace(setting.course, steps=WARMUP + setting.steps, validate_every=0)
    with run_folder(options.keep) as kept:
        legs = {}
        for name in systems:
            place = emulated.job.topology if is_ours(name) else topology
            course, own = course_of(name, sprint), kept / _folder_name(name)
            with Network(lay_out(place)) as network:
                legs[name] = race(name, LabGround(network, place), course, own, WARMUP, emulated)
            tell(f"{name} took {', '.join(f'{each:.2f}' for each in legs[name].seconds)} s a step")
        plans = {name: _plan(kept / _folder_name(name)) for name in systems if is_ours(name)}
    references = _references(setting.course, plans) if setting.target else {}
    return result(options.setting, emulated.job.emulation.divisor, legs, plans, references)


def emulate(setting: Setting, topology: Topology) -> Emulated:
    """The setting's job, and its devices; on farflung's side slowed to what one switch can carry."""
    job, efficiency = setting.course.job("meta"), setting.efficiency
    workload = workload_of(capture_shapes(job).graph, job.microbatches, job.microbatch_size)
    options = Options(workers=setting.workers, efficiency=efficiency)
    chosen = scheduler(AUTO)(topology, workload, options).plan.workers()
    taken = subtopology(topology, sorted(topology.ids.index(worker) for worker in chosen))
    shapes = emulate_job(job, taken, len(chosen), efficiency, None)
    tflops = {worker.id: efficiency * worker.tflops for worker in topology.workers}
    return Emulated(tflops, float(workload.flops.sum()), shapes)


def result(
    setting: str,
    divisor: float,
    legs: dict[str, Leg],
    plans: dict[str, Plan],
    references: dict[str, Reference],
) -> Result:
    """All systems beside the best opponent."""
    course, testbed = SETTINGS[setting].course, SETTINGS[setting].testbed
    dense = references.get(FARFLUNG)
    target = dense.target_loss if dense else None
    systems = {}
    for name, leg in legs.items():
        known = references.get(name, dense)
        steps = known.steps_to(target) if known is not None and target is not None else None
        slower = divisor if name in plans else 1.0
        median = leg.median_seconds / slower
        systems[name] = Raced(
            seconds_per_step=median,
            spread=(min(leg.seconds) / slower, max(leg.seconds) / slower),
            slower=slower,
            bytes_per_step=leg.bytes_per_step,
            cpu_seconds_per_step=leg.cpu_seconds_per_step,
            late_p99_ms=leg.late_p99_ms,
            void=leg.void,
            workers=len(plans[name].workers()) if name in plans else None,
            steps_to_target=steps,
            seconds_to_target=None if steps is None else steps * median,
        )
    scored = {
        name: msgspec.structs.replace(found, score=_score(name, systems)) for name, found in systems.items()
    }
    return Result(setting, testbed, course, target, scored)


def _score(name: str, systems: dict[str, Raced]) -> float | None:
    """Of a target where there is one: a system that did not come to it has no score."""
    has_target = any(found.seconds_to_target is not None for found in systems.values())
    measure = "seconds_to_target" if has_target else "seconds_per_step"
    own = getattr(systems[name], measure)
    theirs = [
        value for peer, one in systems.items() if not is_ours(peer) and (value := getattr(one, measure))
    ]
    return min(theirs) / own if theirs and own else None


def _references(course: Course, plans: dict[str, Plan]) -> dict[str, Reference]:
    """Each rung's run of the whole course without a network."""
    cache = Path(tempfile.gettempdir()) / "farflung-race"
    known = {FARFLUNG: reference(course, cache, tell)}
    for name, plan in plans.items():
        if name != FARFLUNG:
            with_codec = msgspec.structs.replace(course, codec=rung_of(name))
            known[name] = coded_reference(with_codec, plan, cache, tell)
    return known


def _devices_of(topology: Topology, tflops: float) -> Topology:
    workers = tuple(msgspec.structs.replace(worker, tflops=tflops) for worker in topology.workers)
    return msgspec.structs.replace(topology, workers=workers)


def _plan(folder: Path) -> Plan:
    return msgspec.json.decode((folder / "run" / "plan.json").read_bytes(), type=Plan)


def _folder_name(system: str) -> str:
    return system.replace("/", "+").replace(" ", "-")


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def lines(found: Result) -> list[str]:
    """One for each system."""
    said = [f"{found.setting}: {found.testbed}"]
    for name, system in found.systems.items():
        steps = "" if system.steps_to_target is None else f", {system.steps_to_target} steps to the target"
        score = "" if system.score is None else f": {system.score:.2f} x the best opponent"
        void = " VOID" if system.void else ""
        said.append(
            f"{name}: {system.seconds_per_step:.2f} s a step, {system.bytes_per_step / 1e6:.1f} MB"
            f"{steps}{score}{void}"
        )
    return said


if __name__ == "__main__":
    sys.exit(main())
