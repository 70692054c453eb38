"""The race is fair and says what it measured: equal numerics, a stable contract, honest bounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from benchmarks.race import kept
from benchmarks.race.bounds import Bound, naive_bound, schedule_bound
from benchmarks.race.chart import loss_chart
from benchmarks.race.counting.corpus import built_in
from benchmarks.race.counting.counts import Counted
from benchmarks.race.counting.entrant import entrant
from benchmarks.race.counting.training import train as counted
from benchmarks.race.course import Course
from benchmarks.race.ground import Ground, LoopbackGround
from benchmarks.race.leg import Leg
from benchmarks.race.numerics import Reference, agrees, coded_reference, train
from benchmarks.race.report import first_at_target, lines, steps_words
from benchmarks.race.result import AUTO, Result, result, system
from benchmarks.race.schedules import PIPELINES, parts_of
from benchmarks.race.systems import BASELINES, FARFLUNG, coded, race
from tests.pictures.drawn import assert_legible, svg_text

from benchmarks import wan
from farflung.plans import FEEDER, Edge, Placement, Plan, Topology, WorkerSpec
from farflung.simulator import PAYLOAD_SHARE

TINY = Course(
    layers=4, width=32, heads=2, sequence=16, batch=8, microbatches=4, steps=2, warmup_steps=2, clip=0.5
)  # fmt: skip
ADAPTED = msgspec.structs.replace(TINY, adapter_rank=2, adapter_blocks=3)


@pytest.fixture(scope="module")
def eager() -> Reference:
    return train(TINY)


QUICKLY = ("zero-bubble", "1f1b-int8")


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    "system",
    [*QUICKLY, *(pytest.param(name, marks=pytest.mark.full) for name in BASELINES if name not in QUICKLY)],
)
def test_a_baseline_has_the_losses_of_one_process(system: str, eager: Reference, tmp_path: Path) -> None:
    leg = race(system, LoopbackGround(2), TINY, tmp_path / system, warmup=0)
    assert leg.losses == pytest.approx(expected(system, eager), rel=1e-6)
    assert len(leg.seconds) == TINY.steps


def expected(system: str, eager: Reference) -> list[float]:
    """Boundaries that a user rounds change the losses."""
    if system not in PIPELINES or parts_of(system)[1] == "dense":
        return eager.losses
    schedule, kind = parts_of(system)
    one = entrant(f"{2 * schedule.stages}=stock-{kind}", TINY, built_in())
    losses = counted(one, TINY, built_in(), 0, torch.device("cpu"), "").losses
    assert losses != pytest.approx(eager.losses, rel=1e-6)
    return losses


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
    assert known.losses != pytest.approx(train(TINY).losses, rel=1e-7)


@pytest.mark.full
@pytest.mark.processes
def test_farflung_has_them_too(eager: Reference, tmp_path: Path) -> None:
    course = msgspec.structs.replace(TINY, steps=100)  # counters are read while it runs, late where busy
    leg = race(FARFLUNG, LoopbackGround(2), course, tmp_path / FARFLUNG, warmup=1)
    assert leg.losses[: TINY.steps] == pytest.approx(eager.losses, rel=1e-5)
    assert len(leg.seconds) == course.steps - 1
    assert leg.cpu_seconds_per_step > 0
    assert leg.run_seconds is not None and leg.run_seconds > sum(leg.seconds)
    assert leg.bytes_per_step > TINY.microbatches * TINY.activation_bytes


@pytest.mark.full
@pytest.mark.processes
def test_farflung_with_codecs_has_the_losses_of_one_process_with_them(tmp_path: Path) -> None:
    course = msgspec.structs.replace(TINY, codec="int8/int4-stochastic")
    leg = race(coded(course.codec), LoopbackGround(2), course, tmp_path / "race", warmup=1)
    plan = msgspec.json.decode((tmp_path / "race" / "run" / "plan.json").read_bytes(), type=Plan)
    known = coded_reference(course, plan, tmp_path / "known", lambda _: None)
    assert leg.losses == pytest.approx(known.losses, rel=1e-5)
    assert known.losses != pytest.approx(train(TINY).losses, rel=1e-7)
    elsewhere = json.loads(msgspec.json.encode(plan).replace(b"worker-", b"home-"))
    renamed = msgspec.convert({**elsewhere, "window": plan.window + 1}, Plan)
    never = pytest.fail  # an equal run of other workers is not trained anew
    assert coded_reference(course, renamed, tmp_path / "known", never).losses == known.losses


KNOWN = Counted(
    [100.0, 105.0, 110.0, 115.0, 120.0], [3.0, 2.0], [(0, 3.5), (8, 1.4)], ["code"], ["cpu"], None
)
SLOWER = Counted(
    [110.0, 115.5, 121.0, 126.5, 132.0], [3.1, 2.1], [(0, 3.5), (8, 1.5)], ["code"], ["cpu"], 6.0
)


def raced(counts: dict[str, Counted | None], **seconds: float) -> Result:
    """A race of farflung dense and `auto`, and of others that take so many seconds a step."""
    legs = [
        leg(FARFLUNG, KNOWN.losses, [4.0]),
        leg(AUTO, SLOWER.losses, [1.0], bytes_per_step=250),
        *(leg(name.replace("_", "-"), KNOWN.losses, [each]) for name, each in seconds.items()),
    ]
    known = {FARFLUNG: KNOWN, AUTO: SLOWER, **{one.replace("_", "-"): KNOWN for one in seconds}, **counts}
    return result("lan", "quick", TINY, legs, known, Bound(0.7, "compute"), "bbr")


def test_a_speedup_is_of_the_time_to_the_target_over_the_fastest_of_a_kind() -> None:
    found = raced({}, gpipe=8.0, zero_bubble=6.0, alone=5.0)
    assert found.systems[AUTO].ratio == 4.0
    assert found.systems[AUTO].steps_to_target == 121
    assert found.systems[AUTO].seconds_to_target == pytest.approx(121)
    assert found.speedup_to_target_loss == pytest.approx(6 * 110 / 121)
    assert found.speedups == {FARFLUNG: pytest.approx(1.5), AUTO: pytest.approx(6 * 110 / 121)}
    stock = found.against["dense stock pipeline"][AUTO]
    assert stock.opponent == "zero-bubble"
    assert stock.interval == found.speedup_interval == (pytest.approx(6 / 1.1), pytest.approx(6 / 1.1))
    assert found.against["one machine alone"][FARFLUNG].times == pytest.approx(1.25)
    assert first_at_target(found) == AUTO
    assert found.speedup_samples_per_second == pytest.approx(1.5)


def test_where_one_machine_alone_is_first_the_report_says_so() -> None:
    found = raced({}, gpipe=8.0, alone=0.9)
    assert first_at_target(found) == "alone"
    assert any("nothing is gained by distributing" in line for line in lines(found))
    assert not any("nothing is gained" in line for line in lines(raced({}, gpipe=8.0, alone=5.0)))
    others = list(lines(raced({}, gpipe_int8=0.9, alone=5.0)))
    assert "gpipe-int8 is at the target first" in others


def test_a_system_that_does_not_reach_the_target_has_no_number() -> None:
    never = msgspec.structs.replace(SLOWER, steps=[110.0, None, 121.0, 126.5, 132.0])
    found = raced({AUTO: never}, gpipe=8.0)
    assert found.systems[AUTO].seconds_to_target is None
    assert steps_words(found.systems[AUTO]) == "not reached (4 of 5 seeds)"
    assert AUTO not in found.speedups
    assert found.speedup_to_target_loss == pytest.approx(2.0)  # dense farflung's


def test_a_system_counted_on_fewer_seeds_has_no_time() -> None:
    few = msgspec.structs.replace(SLOWER, steps=SLOWER.steps[:4])
    found = raced({AUTO: few}, gpipe=8.0)
    assert found.systems[AUTO].seconds_to_target is None
    assert steps_words(found.systems[AUTO]) == "counted on 4 of 5 seeds"


def test_a_system_that_was_not_counted_or_with_other_losses_has_no_time() -> None:
    found = raced({AUTO: None}, gpipe=8.0)
    assert steps_words(found.systems[AUTO]) == "not counted"
    assert any("not counted: farflung auto" in line for line in lines(found))
    found = raced({AUTO: KNOWN}, gpipe=8.0)
    assert not found.systems[AUTO].same_losses and found.systems[AUTO].seconds_to_target is None
    assert steps_words(found.systems[AUTO]) == "other losses"
    assert AUTO not in found.speedups


def test_the_result_keeps_its_contract() -> None:
    document = msgspec.to_builtins(raced({}, gpipe=8.0))
    assert document["testbed"] == "lan"
    assert document["target_loss"] == TINY.target
    ours = document["systems"][FARFLUNG]
    assert (ours["seconds_per_step"], ours["steps_to_target"]) == (4.0, 110)
    assert ours["samples_per_second"] == pytest.approx(TINY.batch / 4)
    assert ours["bytes_on_wire"] == 1000
    assert ours["seconds_interval"] == pytest.approx((400, 480))
    assert document["schedule_bound_seconds"] is None


def test_a_race_without_pipelines_has_no_speedup() -> None:
    found = raced({})
    assert found.speedup_to_target_loss is None and found.speedup_interval is None
    assert found.speedup_samples_per_second is None


def test_counts_of_other_code_are_never_used_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"counted by other code, whose first losses are these: {FARFLUNG}, {AUTO}, gpipe"
    assert said in list(lines(raced({}, gpipe=8.0)))
    monkeypatch.setattr("benchmarks.race.result.code_digest", lambda: KNOWN.code[0])
    assert not any("other code" in line for line in lines(raced({}, gpipe=8.0)))


def test_losses_agree_if_the_first_ones_do() -> None:
    assert agrees([1.0, 2.0, 9.0], [1.0, 2.0]) and agrees([1.0], [1.0, 2.0])
    assert not agrees([1.0, 2.1], [1.0, 2.0]) and not agrees([], [1.0])


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
        (["--testbed", "lan", "--codec", "int9"], "no codec"),
        (["--testbed", "lan", "--codec", "int8@0.5,int4"], "of one codec pair"),
        (["--testbed", "lan", "--peers", "interleaved@7"], "do not divide"),
        (["--testbed", "eight-homes", "--peers", "interleaved"], "16 stages"),
        (["--testbed", "lan", "--peers", "1f1b@0"], "0 microbatches"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["wan.py", *arguments])
    monkeypatch.setattr(wan, "compete", pytest.fail)
    assert wan.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def leg(system: str, losses: list[float], seconds: list[float], bytes_per_step: float = 1000.0) -> Leg:
    return Leg(system, losses, seconds, bytes_per_step, 0.5, 0.1, False)


def test_whole_runs_stand_beside_steps_where_they_were_timed() -> None:
    legs = [
        msgspec.structs.replace(leg("gpipe", [2.0, 1.0], [4.0, 6.0]), run_seconds=whole)
        for whole in (30.0, None, 50.0)
    ]
    found = system(legs, TINY, None)
    assert (found.run_seconds, found.run_steps, found.seconds_per_step) == (40.0, TINY.steps, 5.0)
    assert system(legs[1:2], TINY, None).run_seconds is None


def test_an_interrupted_race_goes_on_with_its_next_leg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raced = []

    def once(system: str, place: Ground, course: Course, folder: Path, warmup: int) -> Leg:
        if system in raced:
            raise RuntimeError("the machine went away")
        raced.append(system)
        folder.mkdir(parents=True)
        return leg(system, [3.0], [1.0, 2.0])

    monkeypatch.setattr(wan, "race", once)
    place = LoopbackGround(2)
    first = wan._leg(FARFLUNG, place, TINY, tmp_path / "0", 1)
    assert wan._leg(FARFLUNG, place, TINY, tmp_path / "0", 1) == first
    assert "goes on" in capsys.readouterr().err
    for course, warmup in ((msgspec.structs.replace(TINY, steps=9), 1), (TINY, 2)):
        with pytest.raises(RuntimeError, match="went away"):  # another leg is never taken for this one
            wan._leg(FARFLUNG, place, course, tmp_path / "0", warmup)
    assert not (tmp_path / "0").exists()
    assert len([one for one in tmp_path.iterdir() if one.name.startswith("0.")]) == 1  # it stays by its key
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "half.log").touch()
    wan._leg("gpipe", place, TINY, tmp_path / "1", 1)
    assert not (tmp_path / "1" / "half.log").exists()  # what an interrupted leg had left
    monkeypatch.setattr(kept, "code_digest", lambda: "other code")
    raced.clear()
    wan._leg("gpipe", place, TINY, tmp_path / "1", 1)
    assert raced == ["gpipe"]
