"""What one race gave, as `benchmarks/wan.py --json` prints it. Keys are only ever added."""

from __future__ import annotations

import os
import statistics

import msgspec
from benchmarks.race.bounds import Bound
from benchmarks.race.course import Course
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference
from benchmarks.race.systems import FARFLUNG

PIPELINES = ("gpipe", "1f1b")


class System(msgspec.Struct, frozen=True):
    """One system on one testbed.

    `seconds_per_step` is the median of all measured steps, `spread` the least and the most. `bytes_on_wire`
    is a step's, at the switch, IP headers included; `cpu_seconds_per_step` that of its processes. Time to
    target is None where its losses were not those of the run without a network, or never came down to it.
    With a codec the run without a network has the codec, too; validation is of the plain model.
    """

    seconds_per_step: float
    spread: tuple[float, float]
    measured_steps: int
    samples_per_second: float
    bytes_on_wire: int
    cpu_seconds_per_step: float
    same_losses: bool
    steps_to_target: int | None
    seconds_to_target: float | None
    validation: list[tuple[float, float]]
    final_validation_loss: float | None = None
    ratio: float | None = None


class Proof(msgspec.Struct, frozen=True):
    """A system that trained all steps in the lab: the sum of its steps' seconds, and whether every loss was
    the one without a network.
    """

    system: str
    steps: int
    seconds: float
    same_losses: bool


class Result(msgspec.Struct, frozen=True):
    """A race: the systems, the bounds, and farflung against the faster of GPipe and 1F1B.

    `schedule_bound_seconds` is the simulator's time for farflung's plan, None where no network is emulated.
    `void` names the legs in which the switch was more than 5 ms late at the 99th percentile. `speedups` are
    to the target loss, of each of farflung's rungs. `cores` are this machine's, for all processes together.
    """

    testbed: str
    mode: str
    course: Course
    target_loss: float
    systems: dict[str, System]
    speedup_to_target_loss: float | None
    speedup_samples_per_second: float | None
    naive_bound_seconds: float
    naive_bound_resource: str
    schedule_bound_seconds: float | None
    one_process_seconds_per_step: float
    congestion_control: str
    late_p99_ms: float
    void: list[str]
    proofs: list[Proof] = []
    speedups: dict[str, float] = {}
    cores: int = 1


def system(legs: list[Leg], course: Course, reference: Reference, target_loss: float) -> System:
    """All legs of one system as one, beside the run of its own codecs without a network."""
    seconds = [each for leg in legs for each in leg.seconds]
    median = statistics.median(seconds)
    same = all(reference.agrees(leg.losses) for leg in legs)
    steps = reference.steps_to(target_loss) if same else None
    return System(
        seconds_per_step=median,
        spread=(min(seconds), max(seconds)),
        measured_steps=len(seconds),
        samples_per_second=course.batch / median,
        bytes_on_wire=round(statistics.median(leg.bytes_per_step for leg in legs)),
        cpu_seconds_per_step=statistics.median(leg.cpu_seconds_per_step for leg in legs),
        same_losses=same,
        steps_to_target=steps,
        seconds_to_target=None if steps is None else steps * median,
        validation=[(step * median, loss) for step, loss in reference.validation] if same else [],
        final_validation_loss=reference.validation[-1][1] if same and reference.validation else None,
    )


def proof(leg: Leg, reference: Reference) -> Proof:
    """What a leg over the whole course proves."""
    same = reference.agrees(leg.losses, len(reference.losses))
    return Proof(leg.system, len(leg.losses), sum(leg.seconds), same)


def result(
    testbed: str,
    mode: str,
    course: Course,
    legs: list[Leg],
    reference: Reference,
    coded: dict[str, Reference],
    bound: Bound,
    congestion_control: str,
    schedule_seconds: float | None = None,
) -> Result:
    """The whole race; `coded` are the runs without a network of the systems that have codecs."""
    names = list(dict.fromkeys(leg.system for leg in legs))
    target = reference.target_loss
    systems = {
        name: system([leg for leg in legs if leg.system == name], course, coded.get(name, reference), target)
        for name in names
    }
    ours = [name for name in names if name.startswith(FARFLUNG)]
    speedups = {name: _speedup(systems, name, "seconds_to_target") for name in ours}
    if FARFLUNG in systems:
        dense = systems[FARFLUNG].bytes_on_wire
        systems = {
            name: msgspec.structs.replace(found, ratio=dense / found.bytes_on_wire) if name in ours else found
            for name, found in systems.items()
        }
    return Result(
        testbed=testbed,
        mode=mode,
        course=course,
        target_loss=target,
        systems=systems,
        speedup_to_target_loss=_speedup(systems, FARFLUNG, "seconds_to_target"),
        speedup_samples_per_second=_speedup(systems, FARFLUNG, "seconds_per_step"),
        naive_bound_seconds=bound.seconds,
        naive_bound_resource=bound.resource,
        schedule_bound_seconds=schedule_seconds,
        one_process_seconds_per_step=reference.seconds_per_step,
        congestion_control=congestion_control,
        late_p99_ms=max(leg.late_p99_ms for leg in legs),
        void=[leg.system for leg in legs if leg.void],
        speedups={name: speedup for name, speedup in speedups.items() if speedup is not None},
        cores=os.cpu_count() or 1,
    )


def _speedup(systems: dict[str, System], name: str, measure: str) -> float | None:
    """The faster of GPipe and 1F1B over farflung as it is called; None where one side is missing."""
    theirs = [getattr(systems[peer], measure) for peer in PIPELINES if peer in systems]
    ours = getattr(systems[name], measure) if name in systems else None
    known = [value for value in theirs if value is not None]
    return min(known) / ours if known and ours else None
