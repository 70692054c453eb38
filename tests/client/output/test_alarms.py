"""Alarms of a run: none while it is honest, one that names the segment when its gradients are not."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from benchmarks.zoo import case
from benchmarks.zoo.side_by_side import captured, microbatches, planned
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.output.test_run_folder import row
from tests.client.output.test_run_metrics import job
from tests.client.output.test_warnings import Listener
from tests.client.output.test_warnings import planned as planned_for

from farflung.client.output.alarms import LEAST, WINDOW, Alarm, Alarms
from farflung.client.output.history import effective_rows
from farflung.client.output.recorder import Recorder
from farflung.client.output.run_folder import RunFolder
from farflung.pages.report.happenings import happenings
from farflung.pages.report.recorded import Event
from farflung.plans import Placement, Plan
from farflung.plans.seating import seated
from farflung.plans.unfolding import side_by_side, unfolded
from farflung.protocol.messages import RolledBack, UnitDone
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.clipping import clip_scale, gradient_norm
from farflung.runtime.optimizers.declared import AdamW
from farflung.runtime.parity.steps import named_state, received
from farflung.runtime.training import Training

torch.set_num_threads(1)

STEPS, BEGINS, FALSE = 60, 25, 1
"""Of a small GPT in three segments, whose segment `FALSE` sends false gradients from step `BEGINS` on."""


def heard(rows: Sequence[tuple[float, dict[int, float]]], alarms: Alarms | None = None) -> list[Alarm]:
    """The alarms of steps with these losses and gradient norms."""
    alarms = alarms or Alarms()
    return [
        alarm
        for step, (loss, norms) in enumerate(rows, 1)
        for alarm in alarms.stepped(step, loss, {segment: norm**2 for segment, norm in norms.items()})
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(1, 49)] * 3, st.floats(1, 1.5)), min_size=1, max_size=3 * WINDOW),
    st.floats(1e-12, 1e12),
)
def test_no_history_within_a_factor_of_50_raises_an_alarm(
    rows: list[tuple[float, float, float, float]], unit: float
) -> None:
    """However it moves, from the first step on, and of whichever size a gradient is."""
    assert heard([(row[3] * unit, {n: norm * unit for n, norm in enumerate(row[:3])}) for row in rows]) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(1, 3)] * 3), min_size=LEAST, max_size=2 * WINDOW),
    st.integers(0, 2),
    st.floats(1e6, 1e60),
    st.booleans(),
)
def test_the_segment_whose_norm_jumps_is_named_alone(
    rows: list[tuple[float, float, float]], segment: int, factor: float, clips: bool
) -> None:
    alarms = Alarms(clip=1.0 if clips else None)
    assert heard([(1.0, dict(enumerate(row))) for row in rows], alarms) == []
    step = len(rows) + 1
    squares = {0: 1.0, 1: 1.0, 2: 1.0} | {segment: factor**2}
    (alarm,) = alarms.stepped(step, 1.0, squares)
    assert alarm.segments == (segment,) and f"segment {segment}" in alarm.words
    assert alarm.words.startswith(
        f"step {step} was clipped to" if clips else f"step {step}: the gradient norm"
    )


@given(st.lists(st.tuples(*[st.floats(0, 1e30)] * 3, st.floats(-1e30, 1e30)), max_size=LEAST))
def test_a_run_that_has_just_begun_raises_none(rows: list[tuple[float, float, float, float]]) -> None:
    assert heard([(row[3], dict(enumerate(row[:3]))) for row in rows]) == []


def test_a_shift_that_lasts_is_one_alarm_and_then_ordinary() -> None:
    (alarm,) = heard([(1.0, {0: 1.0, 1: 1e3 if step > 40 else 1.0}) for step in range(400)])
    assert alarm.segments == (1,)


def test_a_segment_that_falls_silent_is_named_and_data_without_targets_is_not() -> None:
    honest = [(1.0, {0: 1.0, 1: 2.0})] * 30
    (alarm,) = heard([*honest, *[(1.0, {0: 1.0, 1: 0.0})] * 30])
    assert alarm.segments == (1,) and "(0, before 2)" in alarm.words
    assert heard([*honest, *[(1.0, {0: 0.0, 1: 0.0})] * 3, *honest]) == []


def test_a_model_that_begins_to_learn_after_a_while_raises_none() -> None:
    """Norms of all layers but the last climb together, to what that one has."""
    small = [min(1.0, 1e-4 * 1.1**step) for step in range(200)]
    assert heard([(1.0, {0: one, 1: 2 * one, 2: 1.5}) for one in small]) == []


def test_a_loss_that_jumps_or_climbs_names_the_step() -> None:
    falls = [10 * 0.97**step + 1 for step in range(80)]
    (jump,) = heard([(loss, {}) for loss in [*falls, 9.0, *falls[-5:]]])
    assert jump.words.startswith("step 81: the loss is 9, and was ")
    climbs = [falls[-1] + 0.1 * step for step in range(60)]
    first, *more = heard([(loss, {}) for loss in [*falls, *climbs]])
    assert "the loss climbs: " in first.words and len(more) < 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-4, 0.05), min_size=300, max_size=450))
def test_noise_after_a_fast_fall_raises_none(small: list[float]) -> None:
    """Once the loss is a fiftieth of what it was at first, it may well grow a hundredfold in a step."""
    assert heard([(loss, {}) for loss in [2.41, 1.0, 0.44, 0.17, 0.15, 0.05, *small]]) == []


def test_a_loss_that_climbs_back_after_a_fast_fall_names_the_step() -> None:
    falls = [2.41, 1.0, 0.44, 0.17, 0.15, 0.05, *[0.008] * 60]
    (jump,) = heard([(loss, {}) for loss in [*falls, 0.7, *[0.008] * 60]])
    assert jump.words.startswith("step 67: the loss is 0.7, and was 0.008 ")


def test_steps_that_do_not_count_are_forgotten() -> None:
    alarms = Alarms()
    assert heard([(1.0, {0: 1.0, 1: 1.0})] * 30, alarms) == []
    for again in range(2):  # the second time, the same jump is as unheard of
        (alarm,) = alarms.stepped(31, 1.0, {0: 1.0, 1: 1e6})
        assert alarm.segments == (1,), again
        alarms.rolled_back(30)


def test_a_loss_that_does_not_count_is_not_what_it_was_at_first() -> None:
    alarms = Alarms()
    assert heard([(1000.0, {})] * LEAST, alarms) == []
    alarms.rolled_back(0)
    (alarm,) = heard([*[(1.0, {})] * LEAST, (100.0, {})], alarms)
    assert alarm.words.startswith("step 13: the loss is 100, and was 1 ")


def test_a_low_that_does_not_count_is_no_beginning_of_a_climb() -> None:
    def steps(first: int, last: int, norm: float) -> list[Alarm]:
        squares = {0: 1e4, 1: norm**2}
        return [alarm for step in range(first, last) for alarm in alarms.stepped(step, 1.0, squares)]

    alarms = Alarms()
    assert steps(1, 41, 1000.0) == steps(41, 81, 10.0) == []
    alarms.rolled_back(40)
    assert steps(41, 101, 1000.0) == []
    assert steps(101, 121, 3e4) == []
    (climb,) = steps(121, 141, 6e4)
    assert "segment 1 (to 60 times its lowest)" in climb.words


@pytest.mark.parametrize("left", [[0, 1, 2], [1, 2], [2]])
def test_a_replica_that_stands_for_others_is_named_alike_in_each_alarm(left: list[int]) -> None:
    """Histories go on where the first pipeline is dropped, and alarms name segments that run."""
    folded = Plan(
        [Placement(n, [f"{r}{n}" for r in "abc"], 1, 0, 1) for n in range(2)], [], 3, 1, shares=[1] * 3
    )
    whole = unfolded(folded, [{5: 8}, {6: 8}], {})
    alarms = Alarms()
    alarms.planned(whole, [["x"], ["y"]] * 3)

    def steps(first: int, last: int, pipelines: list[int], norm: float) -> list[Alarm]:
        squares = {2 * one + at: (1.0, norm**2)[at] for one in pipelines for at in range(2)}
        return [alarm for step in range(first, last) for alarm in alarms.stepped(step, 1.0, squares)]

    assert steps(1, 41, [0, 1, 2], 1.0) == []
    seats = {segment: worker for segment, worker in whole.seats().items() if segment // 2 in left}
    alarms.planned(seated(whole, seats), [["x"], ["y"]] * 3)
    assert steps(41, 61, left, 40.0) == []
    (climb,) = steps(61, 81, left, 80.0)
    (jump,) = steps(81, 82, left, 1e9)
    assert "has climbed" in climb.words and "left what" in jump.words
    assert jump.segments == climb.segments == (2 * left[0] + 1,)
    assert f"segment {2 * left[0] + 1} on worker" in climb.words


@pytest.mark.parametrize("apart", [False, True])
def test_replicas_that_add_up_gradients_are_named_together(apart: bool) -> None:
    folded = Plan([Placement(n, [f"a{n}", f"b{n}"], 1, 0, 1) for n in range(2)], [], 2, 1, shares=[1, 1])
    plan = unfolded(folded, [{5: 8}, {6: 8}], {})
    alarms = Alarms(trains_apart=apart)
    alarms.planned(plan, [["x"], ["y"]] * 2)
    for step in range(20):
        assert alarms.stepped(step, 1.0, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}) == []
    (alarm,) = alarms.stepped(20, 1.0, {0: 1.0, 1: 1.0 if apart else 1e9, 2: 1.0, 3: 1e9})
    workers = "segment 3 on worker b1 (" if apart else "segment 1 on workers a1, b1 ("
    assert workers in alarm.words and len(alarm.segments) == 1


def test_of_replicas_with_cuts_of_their_own_those_are_named_that_add_up_with_it() -> None:
    parts = [
        Plan([Placement(n, [name], 1, 0, 1) for n, name in enumerate(names)], [], 1, 1)
        for names in ("abc", "d", "ef")
    ]
    sizes = [[{5: 8}, {6: 8}, {7: 8}], [{5: 8, 6: 8, 7: 8}], [{5: 8}, {6: 8, 7: 8}]]
    plan = side_by_side(parts[0], parts, sizes, {})
    alarms = Alarms()
    alarms.planned(plan, [["x"], ["y"], ["z"], ["x", "y", "z"], ["x"], ["y", "z"]])
    squares = {0: 1.0, 1: 1.0, 2: 1.0, 3: 3.0, 4: 1.0, 5: 2.0}
    for step in range(20):
        assert alarms.stepped(step, 1.0, squares) == []
    (alarm,) = alarms.stepped(20, 1.0, squares | {1: 1e9, 3: 1e9 + 2, 5: 1e9 + 1})
    assert "segment 1 on workers b, d, f (" in alarm.words and alarm.segments == (1,)


def test_a_dropped_replica_with_cuts_of_its_own_is_not_taken_for_silent() -> None:
    parts = [
        Plan([Placement(n, [name], 1, 0, 1) for n, name in enumerate(names)], [], 1, 1)
        for names in ("a", "bc", "de")
    ]
    halves: list[dict[int, int]] = [{5: 8}, {6: 8}]
    plan = side_by_side(parts[0], parts, [[{5: 8, 6: 8}], halves, halves], {})
    alarms, owned = Alarms(), [["x", "y"], ["x"], ["y"], ["x"], ["y"]]
    alarms.planned(plan, owned)
    for step in range(30):
        assert alarms.stepped(step, 1.0, dict.fromkeys(range(5), 1.0)) == []
    alarms.planned(seated(plan, dict(enumerate("bcde", 1))), owned)
    for step in range(30, 90):
        assert alarms.stepped(step, 1.0, dict.fromkeys(range(1, 5), 1.0)) == []
    assert alarms.stepped(90, 1.0, dict.fromkeys(range(1, 5), 0.0)) == []  # data without targets


def trained(change: Callable[[int], float], clip: float | None) -> list[Alarm]:
    """Alarms of a real run in one process, whose segment `FALSE` multiplies its gradients of each step."""
    subject = case("gpt")
    module, graph = captured(subject, 2)
    training = Training(STEPS, 2, 2, AdamW(lr=3e-3), seed=3, clip=clip)
    plan = planned(graph, training, 3)
    state = named_state(copy.deepcopy(module), graph)
    pipeline = InProcessPipeline(graph, plan.plan, received(plan.programs, 2), state, training)
    alarms, found, false = Alarms(clip), list[Alarm](), pipeline.segments[FALSE]
    honest = false.square_sums

    def sabotaged() -> dict[int, float]:
        for gradient in false.gradients().values():
            gradient.mul_(change(step))
        return honest()

    false.square_sums = sabotaged  # type: ignore[method-assign]
    for step in range(STEPS):
        shares = pipeline.run(step, microbatches(subject, 2, 2, step))
        norm = gradient_norm(share.squares for share in shares)
        squares = {share.segment: sum(share.squares.values()) for share in shares}
        found += alarms.stepped(step + 1, sum(share.loss for share in shares), squares)
        pipeline.decide(step, clip_scale(clip, norm))
    return found


def test_an_honest_run_raises_none() -> None:
    assert trained(lambda step: 1.0, clip=1.0) == []


def jumps(step: int) -> float:
    return 1e30 if step == BEGINS else 1.0


def climbs(step: int) -> float:
    return float(1.4 ** max(0, step - BEGINS))


@pytest.mark.parametrize(("change", "clip"), [(jumps, 1.0), (jumps, None), (climbs, 1.0)])
def test_a_saboteur_is_named(change: Callable[[int], float], clip: float | None) -> None:
    """AdamW does not follow a gradient's size, so that without clipping the loss tells little of it."""
    found = [alarm for alarm in trained(change, clip) if alarm.segments]
    assert 0 < len(found) < 6 and {alarm.segments for alarm in found} == {(FALSE,)}


def resumed(folder: Path, losses: Sequence[float]) -> list[str]:
    """What a recorder warns of that goes on with the run in a folder, at these losses."""

    async def scene(listener: Listener) -> None:
        run = RunFolder.reopen(folder)
        before = len(effective_rows(folder))
        books = Recorder(job(steps=999, validation=None), run, listener, first=before)
        await books.planned(planned_for(2, "a"))
        await books.running(0)
        for unit, loss in enumerate(losses, before):
            await books.unit_done(UnitDone("job-1", 2, unit, loss, 1.0, 0), 0)
        run.close()

    asyncio.run(scene(listener := Listener()))
    return listener.heard


def test_a_resumed_run_knows_what_its_loss_was_at_first(tmp_path: Path) -> None:
    """Small losses after a fast fall are no measure: 0.2 after 0.008 is an alarm only if all began so low."""
    quiet = [*[0.008] * LEAST, 0.2, *[0.008] * 60]
    for name, first in {"fell": [2.41, 1.0, 0.44, 0.05], "always low": [0.008] * 4}.items():
        run = RunFolder.create(tmp_path / name)
        for step, loss in enumerate([*first, *[0.008] * 60], 1):
            run.add_step(row(step, loss))
        run.close()
        assert bool(resumed(tmp_path / name, quiet)) == (name == "always low")


def test_a_resumed_run_does_not_repeat_an_alarm_about_a_climb(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    for step, loss in enumerate([*[1.0] * 60, *[5.0] * 20], 1):
        run.add_step(row(step, loss))
    run.add_event(1.0, "alarm", step=61, segments=[], words="step 61: the loss is 5, and was 1")
    run.close()
    assert not resumed(tmp_path / "run", [5.0] * 60)
    ((said),) = [words for words in resumed(tmp_path / "run", [5.0, 50.0]) if "the loss is 50" in words]
    assert said.startswith("step 142: ")


def test_a_recorder_warns_and_keeps_what_it_said(tmp_path: Path) -> None:
    def done(step: int, square: float) -> UnitDone:
        return UnitDone("job-1", 1, step, 1.0, math.sqrt(1 + square), 0, squares={0: 1.0, 1: square})

    async def scene(listener: Listener) -> None:
        books = Recorder(job(steps=99, validation=None), RunFolder.create(tmp_path / "run"), listener)
        await books.planned(planned_for(1, "a", "b"))
        await books.running(0)
        for step in range(20):
            await books.unit_done(done(step, 4.0), 0)
        assert not listener.heard
        await books.unit_done(done(20, 4e60), 0)
        await books.rolled_back(RolledBack("job-1", 1, 20, 20, "worker b was lost"))
        await books.unit_done(done(20, 4e60), 0)
        books.folder.close()

    asyncio.run(scene(listener := Listener()))
    first, _, again = listener.heard
    assert first == again and first.startswith("step 21: the gradient norm of segment 1 on worker b (2e+30,")
    lines = (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    alarm, _ = [row for row in rows if row["event"] == "alarm"]
    assert (alarm["step"], alarm["segments"], alarm["words"]) == (21, [1], first)
    (shown,) = happenings([msgspec.convert(alarm, Event)], [21])
    assert (shown.kind, shown.words) == ("fault", first)
