"""The race on emulated devices: what its baselines send and how long they take, and who may race."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.race.course import Course
from benchmarks.race.ground import LoopbackGround
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
from farflung.runtime.emulated.backend import EmulatedDevice

TINY = Course(layers=4, width=32, heads=2, sequence=16, batch=8, microbatches=4, steps=3)


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


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("system", ["gpipe", *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_a_baseline_on_emulated_devices_takes_their_time(system: str, tmp_path: Path) -> None:
    ground = LoopbackGround(2)
    sleeping = Emulated(dict.fromkeys(ground.nodes, 1.0), 0.4e12 / TINY.microbatch_size)
    leg = race(system, ground, TINY, tmp_path / system, warmup=1, emulated=sleeping)
    busy = TINY.microbatches * 3 * 0.2  # each of two stages has half the operations, three times over
    assert all(seconds > busy for seconds in leg.seconds)
    if system in SCHEDULES:
        assert leg.bytes_per_step > 2 * TINY.microbatches * TINY.activation_bytes


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
