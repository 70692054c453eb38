"""The race on emulated devices: what its baselines send and how long they take, and what a score is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from benchmarks.emulated import SETTINGS, emulate, result
from benchmarks.race.course import Course
from benchmarks.race.ground import LoopbackGround
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference
from benchmarks.race.schedules import SCHEDULES
from benchmarks.race.sleeping import SleepingStage
from benchmarks.race.systems import (
    ALONE,
    BASELINES,
    FARFLUNG,
    Emulated,
    coded,
    entered,
    race,
    require_possible,
)

from farflung.errors import FarflungError
from farflung.lab.run.emulation import EmulatedJob
from farflung.plans import Placement, Plan
from farflung.plans.testbeds.catalogue import find_topology
from farflung.runtime.emulated.backend import EmulatedDevice

TINY = Course(layers=4, width=32, heads=2, sequence=16, batch=8, microbatches=4, steps=3)
PLAN = Plan([Placement(0, ["a"], 1, 0, 1)], [], microbatches=4, window=4)


def test_a_sleeping_stage_takes_its_time_and_sends_what_a_real_one_would() -> None:
    slept: list[float] = []
    stage = SleepingStage(EmulatedDevice(1e-6, clock=lambda: sum(slept), sleep=slept.append), 5e6, (2, 3))
    received = torch.zeros(4, requires_grad=True)
    sent = stage(received)
    assert sent.shape == (2, 3)
    assert sum(slept) == pytest.approx(5.0)
    sent.backward(torch.ones(2, 3))
    assert sum(slept) == pytest.approx(15.0)
    assert received.grad is not None and received.grad.shape == (4,)
    assert stage(torch.zeros(2, dtype=torch.int64)).requires_grad


FULL = [name for name in (*SCHEDULES, "1f1b-bf16", "1f1b-int8", ALONE) if name != "gpipe"]


@pytest.mark.processes
@pytest.mark.parametrize("system", ["gpipe", *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_a_baseline_on_emulated_devices_takes_their_time(system: str, tmp_path: Path) -> None:
    ground = LoopbackGround(2)
    sleeping = Emulated(dict.fromkeys(ground.nodes, 1.0), 0.4e12, emulated_alone())
    leg = race(system, ground, TINY, tmp_path / system, warmup=1, emulated=sleeping)
    busy = TINY.microbatches * 3 * 0.2  # each of two stages has half the operations, three times over
    assert all(seconds > busy for seconds in leg.seconds)
    if system in SCHEDULES:
        assert leg.bytes_per_step > 2 * TINY.microbatches * TINY.activation_bytes


def emulated_alone() -> EmulatedJob:
    """What a baseline needs none of."""
    setting = replace(SETTINGS["nanogpt"], course=TINY, workers=2)
    return emulate(setting, find_topology("four-homes")).job


def test_a_score_is_of_the_time_to_the_target_where_there_is_one() -> None:
    took = {FARFLUNG: 4.0, coded("int8"): 1.0, "gpipe": 8.0}
    legs = {name: leg(name, seconds) for name, seconds in took.items()}
    dense = Reference([3.0, 2.0, 1.5], [(0, 3.5), (2, 1.4), (3, 1.3)], 0.5)
    slower = Reference([3.1, 2.1, 1.6], [(0, 3.5), (2, 1.5), (3, 1.35)], 0.5)
    plans = {FARFLUNG: PLAN, coded("int8"): PLAN}
    found = result("nanogpt", 1.0, legs, plans, {FARFLUNG: dense, coded("int8"): slower})
    assert found.target_loss == 1.4
    assert found.systems[FARFLUNG].score == pytest.approx(2.0)
    assert found.systems[coded("int8")].score == pytest.approx(8 * 2 / 3)
    never = msgspec.structs.replace(slower, validation=[(0, 3.5)])
    unfinished = result("nanogpt", 1.0, legs, plans, {FARFLUNG: dense, coded("int8"): never})
    assert unfinished.systems[coded("int8")].score is None


def test_without_a_target_a_score_is_of_a_step_in_the_testbeds_own_time() -> None:
    legs = {FARFLUNG: leg(FARFLUNG, 4.0), "gpipe": leg("gpipe", 8.0)}
    found = result("fusionllm", 4.0, legs, {FARFLUNG: PLAN}, {})
    assert found.target_loss is None
    assert found.systems[FARFLUNG].seconds_per_step == 1.0
    assert found.systems[FARFLUNG].score == pytest.approx(8.0)


@pytest.mark.parametrize("unknown", ["ddp", "gpipe2", "farflung", "gpipe@", "gpipe@some"])
def test_who_races_is_known_before_anything_begins(unknown: str) -> None:
    both = ["farflung", "farflung int8", "gpipe", "1f1b@16"]
    known = ("gpipe", "1f1b")
    assert entered(["dense", "int8", "int8"], "gpipe,1f1b@16,", known) == both
    assert entered(["auto"], "ddp", BASELINES) == ["farflung", "farflung auto", "ddp"]
    with pytest.raises(RuntimeError, match=f"expected --peers from gpipe, 1f1b, found '{unknown}'"):
        entered([], f"gpipe,{unknown}", known)


@pytest.mark.parametrize("codec", ["int9", "auto:int9", "adatopk", "adatopk:0.5", "int8@0.5,int4"])
def test_a_codec_that_cannot_race_is_known_before_anything_begins(codec: str) -> None:
    with pytest.raises((RuntimeError, FarflungError)):
        entered([codec], "gpipe", BASELINES)


@pytest.mark.parametrize(
    ("peer", "nodes", "said"),
    [
        ("interleaved", 4, "8 stages, the model 4 blocks"),
        ("gpipe", 5, "5 stages"),
        ("1f1b@3", 2, "3 microbatches do not divide 8 samples"),
        ("1f1b@0", 2, "0 microbatches"),
    ],
)
def test_an_opponent_that_cannot_run_is_known_before_anything_begins(
    peer: str, nodes: int, said: str
) -> None:
    require_possible([FARFLUNG, coded("auto"), "gpipe", "ddp", "alone"], 4, TINY)
    with pytest.raises(RuntimeError, match=said):
        require_possible([peer], nodes, TINY)


def leg(system: str, seconds: float) -> Leg:
    return Leg(system, [], [seconds], 1e6, 1.0, 0.0, False)
