"""Fleets of graphics cards for the emulated race, at true scale: which cards, which lines, which model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from benchmarks.consumer.devices import RTX_3080
from benchmarks.fusionllm import EFFICIENCY, full_speed
from benchmarks.race.course import Course
from benchmarks.race.opponents import Choice, message_bytes
from benchmarks.race.schedules import parts_of
from benchmarks.testbeds.fusionllm import RTX_4090, matrix

from farflung.client.capture.check import capture_shapes
from farflung.errors import FarflungError
from farflung.opdag import wire
from farflung.planner.assignment import Options
from farflung.planner.codecs.wishes import scheduler_for
from farflung.planner.registry import scheduler
from farflung.plans import CodecWishes, Plan, Topology, WorkerSpec
from farflung.plans.wishes import AUTO
from farflung.simulator import Conditions, simulate
from farflung.workload import Workload, workload_of

XL = Course(layers=48, width=1600, heads=25, sequence=1024, batch=64, microbatches=64)
"""GPT-2 XL's blocks over bytes: 1.48 billion parameters, 65,536 symbols a step, 6.6 MB of fp32 a message."""
SUSTAINED = 0.4
"""Of a card's peak, as in `consumer_vs_datacentre.py`."""
RTX_4090_TFLOPS = 165.2
"""Dense fp16 with fp32 sums (NVIDIA Ada GPU Architecture whitepaper); XL's workers compute in it."""
MBPS, LATENCY_MS, CARDS = 200, 50, 8
BUDGET = 400  # the broker's
CARRIED_MBPS = 2000.0
"""Of all lines together, in the mean of a step: the switch carries more than twice that, ranks and workers on
two cores about as much."""


class Setting(NamedTuple):
    """What is raced where."""

    topology: Callable[[], Topology]
    course: Course
    words: str


@dataclass(frozen=True)
class Fleet:
    """Cards that sustain all of their `tflops`, and what they train.

    `flops` are the forward operations of one sample, `program` is the captured model.
    """

    topology: Topology
    course: Course
    words: str
    flops: float
    parameters: int
    workload: Workload
    program: bytes


def eight_cards(tflops: float, memory_gb: float) -> Topology:
    """Eight cards, each in a home of its own, 200 Mbit/s and 50 ms between any two."""
    workers = tuple(WorkerSpec(f"card-{n}", f"home-{n}", tflops, memory_gb) for n in range(CARDS))
    return Topology(
        workers,
        name="eight-cards",
        bandwidth_mbps=matrix(CARDS, lambda a, b: MBPS),
        latency_ms=matrix(CARDS, lambda a, b: LATENCY_MS),
        segmentation_offload=True,  # else the switch could not carry that many packets
    )


def fusionllm() -> Topology:
    """The 48 cards of `fusionllm-48` at full speed."""
    fleet = full_speed()
    workers = tuple(msgspec.structs.replace(one, tflops=EFFICIENCY * one.tflops) for one in fleet.workers)
    return msgspec.structs.replace(fleet, workers=workers)


SETTINGS: Mapping[str, Setting] = {
    "eight-3080": Setting(
        lambda: eight_cards(SUSTAINED * RTX_3080.tflops, RTX_3080.memory_gb),
        XL,
        "8 RTX 3080 (10 GB) at 40 % of 59.5 TFLOP/s, 200 Mbit/s and 50 ms between any two",
    ),
    "eight-4090": Setting(
        lambda: eight_cards(SUSTAINED * RTX_4090_TFLOPS, RTX_4090.memory_gb),
        XL,
        "8 RTX 4090 (24 GB) at 40 % of 165.2 TFLOP/s, 200 Mbit/s and 50 ms between any two",
    ),
    "fusionllm-48": Setting(
        fusionllm,
        XL,
        "48 cards in 19 places at half of their fp32 peak, 8 Mbit/s to 10 Gbit/s",
    ),
}


def fleet_of(setting: Setting) -> Fleet:
    """Capture the model by its shapes."""
    job, topology = setting.course.job("meta"), setting.topology()
    graph = capture_shapes(job).graph
    workload = workload_of(graph, job.microbatches, job.microbatch_size)
    return Fleet(
        topology,
        setting.course,
        setting.words,
        float(workload.flops.sum()) / job.microbatch_size,
        sum(one.numel() for one in job.model.parameters()),
        workload,
        wire.dump(graph),
    )


def planned(fleet: Fleet, codec: str) -> Plan:
    """What farflung's planner makes of all cards, as a broker would that may use any of them."""
    search = scheduler_for(CodecWishes(codec), scheduler(AUTO), Conditions())
    return search(fleet.topology, fleet.workload, Options(budget=BUDGET, recompute=True)).plan


def require_carried(fleet: Fleet, plans: Mapping[str, Plan], choices: Mapping[str, Choice]) -> None:
    """Check that the lab carries what each system sends in a second, at true scale.

    Raises
    ------
    FarflungError
        One sends more.
    """
    asked = {name: plan_mbps(plan, fleet.topology) for name, plan in plans.items()}
    for name, choice in choices.items():
        course = msgspec.structs.replace(fleet.course, microbatches=choice.microbatches)
        size = 2 * choice.microbatches * message_bytes(course, parts_of(name)[1])
        asked[name] = (len(choice.workers) - 1) * size * 8e-6 / choice.seconds
    most = max(asked, key=asked.__getitem__)
    if asked[most] > CARRIED_MBPS:
        raise FarflungError(
            f"{most} sends {asked[most]:.0f} Mbit/s in sum, and the lab carries {CARRIED_MBPS:.0f} on two"
            " cores: use --simulate, or leave it out"
        )


def plan_mbps(plan: Plan, topology: Topology) -> float:
    """What all links of a plan carry, in the mean of a simulated step."""
    found = simulate(plan, topology)
    return sum(load.bytes for load in found.loads if load.kind == "link") * 8e-6 / found.step_seconds
