"""Two replicas at two sites beside DDP: seconds of a step, and bytes on the slow line between the sites.

Two sites of two machines, with a fast network each and 8 Mbit/s between them (`two-sites`), in a lab. The
race's GPT trains as

* DDP over gloo with its ranks in the order of sites, where its ring crosses the slow line twice;
* DDP with the sites interleaved, where it crosses it four times;
* farflung with two replicas, each a pipeline of a site's two machines (`--replicas 2`);
* the same with int8 and error feedback on the sums of gradients between the sites (`--sum-codec int8`);
* the same two replicas, which train apart and merge after 20 steps with 4 bits a number (DiLoCo): another
  algorithm, so its losses are its own; its step is the mean over legs of 20 steps and a merge;
* farflung with four replicas, one on each machine, whose sums are added within sites first;
* farflung as one pipeline, which the planner lays as it likes.

All have the same model, data, batch and optimizer; sides alternate. Bytes are those that the emulated line
carries in both directions, farflung's copies of its state among them. Needs root and /dev/net/tun.

    python -m benchmarks.replicas [--rounds 2] [--steps 4] [--json]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported here, and for all that is started

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import folder_path, whole
from benchmarks.race.course import Course
from benchmarks.race.ground import LabGround, Reading
from benchmarks.race.leg import Leg
from benchmarks.race.systems import FARFLUNG, race, run_folder

from farflung.errors import FarflungError
from farflung.lab.network import Network, RunningLab
from farflung.lab.run.layout import lay_out
from farflung.plans import Topology
from farflung.plans.testbeds.catalogue import find_topology

TESTBED = "two-sites"
WARMUP = 1
COURSE = Course(width=128, sequence=128, learning_rate=2e-3)
DDP, INTERLEAVED = "ddp, ranks in site order", "ddp, sites interleaved"
REPLICAS, CODED = "farflung, two replicas", "farflung, replicas, int8"
APART, FOUR, PIPELINE = "farflung, replicas apart", "farflung, four replicas", "farflung, one pipeline"
SIDES = (DDP, INTERLEAVED, REPLICAS, CODED, APART, FOUR, PIPELINE)
INNER_STEPS = 20


class Side(msgspec.Struct, frozen=True):
    """One side: medians over rounds, and ratios of the first side's (DDP's in site order) to them.

    `losses` are those of the first round.
    """

    side: str
    step_seconds: float
    slow_line_bytes_per_step: float
    times_faster: float
    times_fewer_bytes: float
    losses: list[float]
    void: bool


class SlowLine(LabGround):
    """Counts what passes between the sites alone; ranks run in an order of `nodes`."""

    def __init__(self, network: RunningLab, topology: Topology, nodes: list[str]) -> None:
        super().__init__(network, topology)
        self.nodes = nodes
        self._sites = {worker.id: worker.site for worker in topology.workers}

    def read(self) -> Reading:
        sites = self._sites
        links = self.network.stats().links
        return Reading(
            sum(
                link.bytes
                for link in links
                if link.source in sites and link.target in sites and sites[link.source] != sites[link.target]
            ),
            0.0,
        )


def run_side(side: str, network: RunningLab, topology: Topology, course: Course, folder: Path) -> Leg:
    """One leg of one side."""
    nodes = topology.ids
    if side == INTERLEAVED:
        half = len(nodes) // 2
        nodes = [node for pair in zip(nodes[:half], nodes[half:], strict=True) for node in pair]
    replicas = {REPLICAS: 2, CODED: 2, APART: 2, FOUR: 4}.get(side, 1)
    changed = {"replicas": replicas, "sum_codec": {CODED: "int8", APART: "int4"}.get(side, "dense")}
    if side == APART:
        changed |= {"inner_steps": INNER_STEPS, "steps": WARMUP + INNER_STEPS}
    system = "ddp" if side in (DDP, INTERLEAVED) else FARFLUNG
    return race(
        system,
        SlowLine(network, topology, nodes),
        msgspec.structs.replace(course, **changed),
        folder,
        WARMUP,
    )


def summed_up(legs: dict[str, list[Leg]]) -> list[Side]:
    """The sides beside the first one, which is DDP in site order if that runs.

    Training apart is a mean: one step in twenty waits for a merge.
    """
    first = next(iter(legs))

    def seconds(side: str) -> float:
        found = [each for leg in legs[side] for each in leg.seconds]
        return statistics.mean(found) if side == APART else statistics.median(found)

    def carried(side: str) -> float:
        return statistics.median(leg.bytes_per_step for leg in legs[side])

    return [
        Side(
            side,
            seconds(side),
            carried(side),
            seconds(first) / seconds(side),
            carried(first) / carried(side),
            legs[side][0].losses,
            any(leg.void for leg in legs[side]),
        )
        for side in legs
    ]


def sides_of(text: str) -> tuple[str, ...]:
    """The sides of that list; ValueError if there is no such side."""
    named = [name.strip() for name in text.split(";")]
    if unknown := [name for name in named if name not in SIDES]:
        raise argparse.ArgumentTypeError(f"expected some of {'; '.join(SIDES)}, found {unknown[0]!r}")
    return tuple(side for side in SIDES if side in named)


def main() -> int:
    """Run all sides; 1 if the machine does not allow it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=whole, default=2, help="how often the sides alternate")
    parser.add_argument(
        "--steps", type=whole, default=4, help="measured steps of a leg, after one of warm-up"
    )
    parser.add_argument("--sides", type=sides_of, default=SIDES, help="only these, separated by ;")
    parser.add_argument(
        "--keep", type=folder_path, help="folder for runs and logs (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        found = compete(options)
    except (FarflungError, RuntimeError) as error:
        print(f"replicas.py: {error}", file=sys.stderr)
        return 1
    print(f"{'':28}{'step, s':>10}{'slow line, MB':>16}{'times faster':>14}{'fewer bytes':>13}")
    for one in found:
        print(
            f"{one.side:28}{one.step_seconds:10.2f}{one.slow_line_bytes_per_step / 1e6:16.2f}"
            f"{one.times_faster:14.2f}{one.times_fewer_bytes:13.2f}{'  VOID' if one.void else ''}"
        )
    if options.json:
        print(msgspec.json.encode({"testbed": TESTBED, "course": COURSE, "sides": found}).decode())
    return 0


def compete(options: argparse.Namespace) -> list[Side]:
    """All rounds in one lab."""
    topology = find_topology(TESTBED)
    course = msgspec.structs.replace(COURSE, steps=WARMUP + options.steps)
    legs: dict[str, list[Leg]] = {side: [] for side in options.sides}
    with run_folder(options.keep) as kept, Network(lay_out(topology)) as network:
        for number in range(options.rounds):
            for side in options.sides if number % 2 == 0 else options.sides[::-1]:
                folder = kept / f"{number}-{side.replace(' ', '-').replace(',', '')}"
                leg = run_side(side, network, topology, course, folder)
                legs[side].append(leg)
                shown = ", ".join(f"{each:.2f}" for each in leg.seconds)
                print(f"{side}: {shown} s a step", file=sys.stderr, flush=True)
    return summed_up(legs)


if __name__ == "__main__":
    sys.exit(main())
