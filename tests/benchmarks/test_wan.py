"""The race is fair and says what it measured: equal numerics, a stable contract, honest bounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.race.bounds import Bound, naive_bound, schedule_bound
from benchmarks.race.chart import loss_chart
from benchmarks.race.coded import coded_reference
from benchmarks.race.course import Course
from benchmarks.race.ground import LoopbackGround
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference, train
from benchmarks.race.result import result
from benchmarks.race.systems import BASELINES, FARFLUNG, coded, race
from tests.pictures.drawn import assert_legible, svg_text

from benchmarks import wan
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology, WorkerSpec
from farflung.simulator import PAYLOAD_SHARE

TINY = Course(layers=4, width=32, heads=2, sequence=16, batch=8, microbatches=4, steps=2)
ADAPTED = msgspec.structs.replace(TINY, adapter_rank=2, adapter_blocks=3)


@pytest.fixture(scope="module")
def eager() -> Reference:
    return train(TINY)


@pytest.mark.processes
@pytest.mark.parametrize(
    "system", ["1f1b", *(pytest.param(name, marks=pytest.mark.full) for name in BASELINES if name != "1f1b")]
)
def test_a_baseline_has_the_losses_of_one_process(system: str, eager: Reference, tmp_path: Path) -> None:
    leg = race(system, LoopbackGround(2), TINY, tmp_path / system, warmup=0)
    assert leg.losses == pytest.approx(eager.losses, rel=1e-5)
    assert len(leg.seconds) == TINY.steps


def test_adapters_alone_are_trained_in_the_blocks_that_are_asked_for() -> None:
    model = ADAPTED.model()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 4 * ADAPTED.adapter_blocks and all(".lora_" in name for name in trained)
    assert {name.split(".")[1] for name in trained} == {"1", "2", "3"}


@pytest.mark.processes
@pytest.mark.full
@pytest.mark.parametrize("system", [FARFLUNG, "gpipe", "1f1b", "ddp"])
def test_all_train_adapters_with_the_losses_of_one_process(system: str, tmp_path: Path) -> None:
    course = msgspec.structs.replace(ADAPTED, steps=100 if system == FARFLUNG else 2)
    leg = race(system, LoopbackGround(2), course, tmp_path / system, warmup=0)
    known = train(ADAPTED)
    assert leg.losses[:2] == pytest.approx(known.losses, rel=1e-5)
    assert known.losses != pytest.approx(train(TINY).losses, rel=1e-5)


@pytest.mark.processes
def test_farflung_has_them_too(eager: Reference, tmp_path: Path) -> None:
    course = msgspec.structs.replace(TINY, steps=100)  # counters are read while it runs, late where busy
    leg = race(FARFLUNG, LoopbackGround(2), course, tmp_path / FARFLUNG, warmup=1)
    assert leg.losses[: TINY.steps] == pytest.approx(eager.losses, rel=1e-5)
    assert len(leg.seconds) == course.steps - 1
    assert leg.cpu_seconds_per_step > 0
    assert leg.bytes_per_step > TINY.microbatches * TINY.activation_bytes


@pytest.mark.processes
def test_farflung_with_codecs_has_the_losses_of_one_process_with_them(tmp_path: Path) -> None:
    course = msgspec.structs.replace(TINY, codec="int8/int4-stochastic")
    leg = race(coded(course.codec), LoopbackGround(2), course, tmp_path / "race", warmup=1)
    plan = msgspec.json.decode((tmp_path / "race" / "run" / "plan.json").read_bytes(), type=Plan)
    known = coded_reference(course, plan, tmp_path / "known", lambda _: None)
    assert leg.losses == pytest.approx(known.losses, rel=1e-5)
    assert known.losses != pytest.approx(train(TINY).losses, rel=1e-5)
    elsewhere = json.loads(msgspec.json.encode(plan).replace(b"worker-", b"home-"))
    renamed = msgspec.convert({**elsewhere, "window": plan.window + 1}, Plan)
    never = pytest.fail  # an equal run of other workers is not trained anew
    assert coded_reference(course, renamed, tmp_path / "known", never).losses == known.losses


def test_the_speedup_of_a_codec_is_to_the_loss_of_its_own_run() -> None:
    known = Reference([3.0, 2.0, 1.5], [(0, 3.5), (2, 1.4), (3, 1.3)], 0.5)
    slower = Reference([3.1, 2.1, 1.6], [(0, 3.5), (2, 1.5), (3, 1.35)], 0.5)
    name = coded("int8")
    legs = [
        leg(FARFLUNG, known.losses, [4.0]),
        leg(name, slower.losses, [1.0], bytes_per_step=250),
        leg("gpipe", known.losses, [6.0]),
    ]
    found = result("lan", "quick", TINY, legs, known, {name: slower}, Bound(0.7, "compute"), "bbr")
    assert found.target_loss == 1.4
    assert found.systems[name].ratio == 4.0
    assert found.speedups == {FARFLUNG: pytest.approx(1.5), name: pytest.approx(6 * 2 / 3)}
    never = msgspec.structs.replace(slower, validation=[(0, 3.5)])
    unfinished = result("lan", "quick", TINY, legs, known, {name: never}, Bound(0.7, "compute"), "bbr")
    assert unfinished.systems[name].seconds_to_target is None
    assert name not in unfinished.speedups


def test_the_result_keeps_its_contract() -> None:
    known = Reference([3.0, 2.0, 1.5, 1.2, 1.1], [(0, 3.5), (2, 2.5), (4, 1.4), (5, 1.3)], 0.5)
    legs = [
        leg(FARFLUNG, known.losses, [1.0, 1.2]),
        leg("gpipe", known.losses, [2.0, 2.2]),
        leg("1f1b", known.losses, [3.0, 3.0]),
        leg("ddp", [9.0] * 5, [5.0]),
    ]
    found = result("four-homes", "quick", TINY, legs, known, {}, Bound(0.7, "compute"), "bbr")
    document = msgspec.to_builtins(found)
    assert document["testbed"] == "four-homes"
    assert document["target_loss"] == 1.4
    ours = document["systems"][FARFLUNG]
    assert (ours["seconds_per_step"], ours["steps_to_target"]) == (1.1, 4)
    assert ours["seconds_to_target"] == pytest.approx(4.4)
    assert ours["samples_per_second"] == pytest.approx(TINY.batch / 1.1)
    assert ours["bytes_on_wire"] == 1000
    assert document["speedup_to_target_loss"] == pytest.approx(2.1 / 1.1)
    assert document["schedule_bound_seconds"] is None
    assert document["systems"]["ddp"]["steps_to_target"] is None  # its losses were others
    assert not document["systems"]["ddp"]["same_losses"]


def test_a_race_without_pipelines_has_no_speedup() -> None:
    known = Reference([3.0], [(0, 3.5)], 0.5)
    found = result(
        "lan", "quick", TINY, [leg(FARFLUNG, [3.0], [1.0])], known, {}, Bound(0.7, "compute"), "bbr"
    )
    assert found.speedup_to_target_loss is None


@pytest.mark.parametrize(
    ("up_mbps", "compute_seconds", "resource", "seconds"),
    [(None, 0.1, "a -> b", 4.0), (1.0, 0.1, "a up", 32.0), (None, 9.0, "compute", 9.0)],
)
def test_the_naive_bound_is_the_busiest_resource(
    up_mbps: float | None, compute_seconds: float, resource: str, seconds: float
) -> None:
    workers = (WorkerSpec("a", "", 1.0, 1.0, up_mbps=up_mbps), WorkerSpec("b", "", 1.0, 1.0))
    topology = Topology(workers, ((0.0, 5.0), (5.0, 0.0)), ((0.0, 8.0), (10.0, 0.0)))
    plan = Plan(
        [Placement(0, ["a"], 1, 0, 1), Placement(1, ["b"], 1, 0, 1)],
        [Edge(0, FEEDER, 0, 50_000, False), Edge(1, 0, 1, 1_000_000, True)],
        microbatches=4,
        window=4,
    )
    found = naive_bound(plan, topology, compute_seconds)
    assert found.resource == resource
    assert found.seconds == pytest.approx(seconds)


def test_the_schedule_bound_has_fill_and_drain() -> None:
    """One process takes 6 s, so each half takes 0.25 s forward; a message takes 1 s of a line's payload.

    The second half sends its gradient back before it computes those of its weights.
    """
    workers = tuple(WorkerSpec(id, "", 1.0, 1.0) for id in "ab")
    rate = 8 / PAYLOAD_SHARE
    topology = Topology(workers, ((0.0, 0.0), (0.0, 0.0)), ((0.0, rate), (rate, 0.0)))
    halves = [Placement(number, [id], 10**12, 0, 1) for number, id in enumerate("ab")]
    plan = Plan(halves, [Edge(0, FEEDER, 0, 0, False), Edge(1, 0, 1, 10**6, True)], 4, 4)
    there, back = 0.25 + 4 * 1.0, 0.25 + 0.25 + 1.0 + 0.5
    assert schedule_bound(plan, topology, 6.0) == pytest.approx(there + back)


def test_a_loss_chart_is_a_picture_with_every_line_inside() -> None:
    lines = {"a & b": [(0.0, 5.0), (10.0, 2.0)], "c": [(0.0, 5.0), (40.0, 2.0)]}
    figure = loss_chart("over <time>", lines, 2.5)
    (axes,) = figure.axes
    drawn = [line for line in axes.lines if line.get_label() in lines]
    assert [[tuple(map(float, point)) for point in line.get_xydata()] for line in drawn] == [*lines.values()]
    for line in drawn:
        for x, y in line.get_xydata():
            assert axes.get_xlim()[0] <= x <= axes.get_xlim()[1]
            assert axes.get_ylim()[0] <= y <= axes.get_ylim()[1]
    assert {"over <time>", "a & b", "target 2.5"} <= set(svg_text(figure))
    assert_legible(figure)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--testbed", "no-such"], "neither a file nor a testbed"),
        (["--testbed", "lan", "--peers", "nccl"], "expected --peers from"),
        (["--testbed", "lan", "--adapter", "4", "--adapter-blocks", "9"], "1 to 8 blocks"),
        (["--testbed", "lan", "--adapter-blocks", "4"], "--adapter RANK"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["wan.py", *arguments])
    assert wan.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def leg(system: str, losses: list[float], seconds: list[float], bytes_per_step: float = 1000.0) -> Leg:
    return Leg(system, losses, seconds, bytes_per_step, 0.5, 0.1, False)
