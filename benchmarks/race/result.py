"""What one race gave, as `benchmarks/wan.py --json` prints it. Keys are only ever added."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence

import msgspec
from benchmarks.race.bounds import Bound
from benchmarks.race.counting.counts import Counted
from benchmarks.race.counting.curve import interval
from benchmarks.race.counting.store import code_digest
from benchmarks.race.course import Course
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import agrees
from benchmarks.race.schedules import PIPELINES, parts_of
from benchmarks.race.systems import ALONE, DDPS, FARFLUNG, base_of, coded

AUTO = coded("auto")
STOCK = "dense stock pipeline"
CLASSES = {
    STOCK: [name for name in PIPELINES if parts_of(name)[1] == "dense"],
    "stock pipeline with bf16 boundaries": [name for name in PIPELINES if parts_of(name)[1] == "bf16"],
    "stock pipeline with int8 boundaries": [name for name in PIPELINES if parts_of(name)[1] == "int8"],
    "data parallelism": list(DDPS),
    "one machine alone": [ALONE],
}
"""Kinds of opponents. Each is as fast as the fastest of its systems that raced."""
SEEDS = 5
"""Counted seeds without which a system has no time to the target."""
ELSEWHERE = 2e-6
"""Relative difference of a first loss between this machine and another device or version of PyTorch. An H200
with PyTorch 2.11 differs from a CPU with 2.13 by 5e-8; int8 boundaries differ from dense ones by 4e-6."""


class System(msgspec.Struct, frozen=True):
    """One system on one testbed.

    `seconds_per_step` is the median of all measured steps, `spread` the least and the most. `bytes_on_wire`
    is a step's, at the switch, IP headers included; `cpu_seconds_per_step` that of its processes.

    `steps_by_seed` were counted without a network, None: not at the target. Steps and seconds to the target
    are medians over the seeds, with a 90 % interval by bootstrap over seeds and measured steps; None if there
    are fewer than `SEEDS`, if one does not reach it, if it was not counted (`counted` is false), or if the
    losses were not those of the counted run (`same_losses`), which other code may have made. Validation is of
    the plain model over seconds, the mean of all seeds. `run_seconds` is the median of whole legs, of
    `run_steps` steps each: beside these, of all that comes before and after them.
    """

    seconds_per_step: float
    spread: tuple[float, float]
    measured_steps: int
    samples_per_second: float
    bytes_on_wire: int
    cpu_seconds_per_step: float
    same_losses: bool
    steps_to_target: float | None
    seconds_to_target: float | None
    validation: list[tuple[float, float]]
    final_validation_loss: float | None = None
    ratio: float | None = None
    counted: bool = False
    steps_by_seed: list[float | None] = []
    seconds_interval: tuple[float, float] | None = None
    counted_on: list[str] = []
    counted_by_this_code: bool = False
    run_seconds: float | None = None
    run_steps: int = 0


class Speedup(msgspec.Struct, frozen=True):
    """How many times sooner a system is at the target than the fastest opponent of a kind.

    `interval` holds 90 % of the bootstrap draws; seeds are drawn for both sides together.
    """

    opponent: str
    times: float
    interval: tuple[float, float]


class Proof(msgspec.Struct, frozen=True):
    """A system that trained to the target in the lab: the sum of its steps' seconds, and whether its first
    losses were those that were counted.
    """

    system: str
    steps: int
    seconds: float
    same_losses: bool


class Result(msgspec.Struct, frozen=True):
    """A race: the systems, the bounds, and farflung against each kind of opponent.

    `speedup_to_target_loss` is that of `auto` over the fastest dense stock pipeline, or of dense farflung
    where `auto` did not race; `speedup_interval` is its interval. `speedups` are the same for all of
    farflung's codecs, `against` for all kinds of opponents. `schedule_bound_seconds` is the simulator's time
    for dense farflung's plan, None where no network is emulated. `void` names the legs in which the switch
    was more than 5 ms late at the 99th percentile. `cores` are this machine's, for all processes together.
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
    one_process_seconds_per_step: float | None
    congestion_control: str
    late_p99_ms: float
    void: list[str]
    proofs: list[Proof] = []
    speedups: dict[str, float] = {}
    cores: int = 1
    speedup_interval: tuple[float, float] | None = None
    against: dict[str, dict[str, Speedup]] = {}


class Side(msgspec.Struct, frozen=True):
    """What time to the target is made of: steps of each seed, and seconds of measured steps."""

    steps: list[float]
    seconds: list[float]

    @property
    def to_target(self) -> float:
        """Median steps times median seconds."""
        return statistics.median(self.steps) * statistics.median(self.seconds)


def result(
    testbed: str,
    mode: str,
    course: Course,
    legs: Sequence[Leg],
    counts: Mapping[str, Counted | None],
    bound: Bound,
    congestion_control: str,
    schedule_seconds: float | None = None,
) -> Result:
    """The whole race; `counts` are the counted runs of each system that raced."""
    names = list(dict.fromkeys(leg.system for leg in legs))
    of = {name: [leg for leg in legs if leg.system == name] for name in names}
    systems = {name: system(of[name], course, counts.get(name)) for name in names}
    sides = {
        name: Side([step for step in systems[name].steps_by_seed if step is not None], _seconds(of[name]))
        for name in names
        if systems[name].seconds_to_target is not None
    }
    ours = [name for name in names if name.startswith(FARFLUNG)]
    if FARFLUNG in systems:
        dense = systems[FARFLUNG].bytes_on_wire
        for name in ours:
            systems[name] = msgspec.structs.replace(systems[name], ratio=dense / systems[name].bytes_on_wire)
    against = {kind: _against(sides, ours, kind) for kind in CLASSES}
    over = against[STOCK]
    main = over.get(AUTO) or over.get(FARFLUNG)
    return Result(
        testbed=testbed,
        mode=mode,
        course=course,
        target_loss=course.target,
        systems=systems,
        speedup_to_target_loss=main.times if main else None,
        speedup_samples_per_second=_per_step(systems),
        naive_bound_seconds=bound.seconds,
        naive_bound_resource=bound.resource,
        schedule_bound_seconds=schedule_seconds,
        one_process_seconds_per_step=systems[ALONE].seconds_per_step if ALONE in systems else None,
        congestion_control=congestion_control,
        late_p99_ms=max(leg.late_p99_ms for leg in legs),
        void=[leg.system for leg in legs if leg.void],
        speedups={name: found.times for name, found in over.items()},
        cores=os.cpu_count() or 1,
        speedup_interval=main.interval if main else None,
        against={kind: found for kind, found in against.items() if found},
    )


def system(legs: Sequence[Leg], course: Course, counted: Counted | None) -> System:
    """All legs of one system as one, with the counted steps if its losses are those that were counted."""
    seconds = _seconds(legs)
    median = statistics.median(seconds)
    same = counted is not None and all(agrees(leg.losses, counted.losses, ELSEWHERE) for leg in legs)
    is_enough = counted is not None and same and len(counted.steps) >= SEEDS
    reached = counted.reached if counted is not None and is_enough else []
    side = Side(reached, seconds)
    whole = [leg.run_seconds for leg in legs if leg.run_seconds is not None]
    return System(
        seconds_per_step=median,
        spread=(min(seconds), max(seconds)),
        measured_steps=len(seconds),
        samples_per_second=course.batch / median,
        bytes_on_wire=round(statistics.median(leg.bytes_per_step for leg in legs)),
        cpu_seconds_per_step=statistics.median(leg.cpu_seconds_per_step for leg in legs),
        run_seconds=statistics.median(whole) if whole else None,
        run_steps=course.steps,
        same_losses=same,
        steps_to_target=statistics.median(reached) if reached else None,
        seconds_to_target=side.to_target if reached else None,
        validation=[(step * median, loss) for step, loss in counted.curve] if counted and same else [],
        final_validation_loss=counted.curve[-1][1] if counted and same and counted.curve else None,
        counted=counted is not None,
        steps_by_seed=counted.steps if counted is not None and same else [],
        seconds_interval=_time_interval(side) if reached else None,
        counted_on=counted.devices if counted is not None else [],
        counted_by_this_code=counted is not None and counted.code == [code_digest()],
    )


def proof(leg: Leg, counted: Counted) -> Proof:
    """What a leg to the target proves."""
    return Proof(leg.system, len(leg.losses), sum(leg.seconds), agrees(leg.losses, counted.losses, ELSEWHERE))


def fastest(names: Sequence[str], seconds: Mapping[str, float]) -> str | None:
    """Of the systems whose base is one of `names`, the one that takes least."""
    there = [name for name in seconds if base_of(name) in names]
    return min(there, key=seconds.__getitem__, default=None)


def _against(sides: Mapping[str, Side], ours: Sequence[str], kind: str) -> dict[str, Speedup]:
    opponent = fastest(CLASSES[kind], {name: side.to_target for name, side in sides.items()})
    if opponent is None:
        return {}
    return {name: _speedup(opponent, sides[opponent], sides[name]) for name in ours if name in sides}


def _speedup(opponent: str, theirs: Side, ours: Side) -> Speedup:
    """Paired by seed, as far as both have them."""
    pairs = list(zip(theirs.steps, ours.steps, strict=False))

    def times(drawn: list[tuple[float, float]], slow: list[float], fast: list[float]) -> float:
        steps = [statistics.median(side) for side in zip(*drawn, strict=True)]
        return steps[0] * statistics.median(slow) / (steps[1] * statistics.median(fast))

    samples = (pairs, theirs.seconds, ours.seconds)
    return Speedup(opponent, times(*samples), interval(samples, times))


def _time_interval(side: Side) -> tuple[float, float]:
    return interval(
        (side.steps, side.seconds),
        lambda steps, seconds: statistics.median(steps) * statistics.median(seconds),
    )


def _per_step(systems: Mapping[str, System]) -> float | None:
    """Dense farflung's step against the fastest dense stock pipeline's."""
    seconds = {name: found.seconds_per_step for name, found in systems.items()}
    opponent = fastest(CLASSES[STOCK], seconds)
    if opponent is None or FARFLUNG not in systems:
        return None
    return seconds[opponent] / seconds[FARFLUNG]


def _seconds(legs: Sequence[Leg]) -> list[float]:
    return [each for leg in legs for each in leg.seconds]
