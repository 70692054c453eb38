"""The controller by replay: histories of what was measured in, switches out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.codecs.chains import context
from tests.planner.codecs.tables import AXES, RUNGS, WITH_AXES

from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.controller import (
    DWELL,
    PROBE_NOISE,
    BeginProbe,
    CodecsSampled,
    Controller,
    EndProbe,
    Event,
    LinkMeasured,
    LinkWritten,
    Relax,
    Switch,
    UnitMeasured,
)
from farflung.planner.codecs.decisions import on_event
from farflung.planner.codecs.ladder import ladder, number_of
from farflung.planner.codecs.limits import Limits
from farflung.runtime.parcel import CodecSample

MEGABIT = 1e6 / 8
ANY_LOSS = Limits(1.0)
QUANTISERS = Limits(1.0, roughest="int8/eden2")


def started(mbps: float, limits: Limits = QUANTISERS, compute_seconds: float = 0.3) -> Controller:
    """Two workers, 1 MB each way, over links of `mbps`."""
    where = context({(0, 1): mbps, (1, 0): mbps}, workers=2, compute_seconds=compute_seconds, microbatches=64)
    return Controller.start(where, RUNGS, limits)[0]


def sample(
    source: str, target: str, codec: str, ratio: float, error: float, gradient: bool = False
) -> LinkSample:
    return LinkSample(source, target, CodecSample(codec, gradient, True, ratio, error, 0.0, 0.0))


def unit(number: int, mbps: float, back_mbps: float | None = None) -> UnitMeasured:
    back = mbps if back_mbps is None else back_mbps
    links = (LinkMeasured("a", "b", mbps * MEGABIT), LinkMeasured("b", "a", back * MEGABIT))
    return UnitMeasured(number, links)


def replay(controller: Controller, events: Iterable[Event]) -> tuple[Controller, list[Switch]]:
    switches: list[Switch] = []
    for event in events:
        controller, more = on_event(controller, event)
        switches.extend(more)
    return controller, switches


def rungs(controller: Controller) -> dict[tuple[str, str], str]:
    return {
        (link.source, link.target): controller.rung(number).name
        for number, link in enumerate(controller.context.links)
    }


def test_links_that_behave_as_planned_keep_their_rungs() -> None:
    controller, switches = replay(started(20), (unit(n, 20) for n in range(200)))
    assert switches == []
    assert rungs(controller) == {("a", "b"): "bf16", ("b", "a"): "bf16"}


def test_a_link_that_gets_slower_gets_a_rougher_rung_within_ten_steps() -> None:
    controller, _ = replay(started(40), (unit(n, 40) for n in range(20)))
    controller, switches = replay(controller, (unit(20 + n, 7) for n in range(10)))
    assert {switch.unit for switch in switches} <= set(range(21, 30))
    found = rungs(controller)
    assert found["a", "b"].startswith("int8") and found["b", "a"] in (
        "int8",
        "int8/int4-stochastic",
        "int8/eden2",
    )
    assert all("carries 7 Mbit/s, not 40 Mbit/s" in switch.reason for switch in switches)
    assert all("\n" not in switch.reason and switch.ratio > 1 for switch in switches)


def test_a_link_that_gets_faster_gets_a_gentler_rung_within_ten_steps() -> None:
    controller, _ = replay(started(7), (unit(n, 7) for n in range(20)))
    controller, switches = replay(controller, (unit(20 + n, 400) for n in range(10)))
    assert set(rungs(controller).values()) == {"dense"}
    assert {(switch.rung, switch.ratio) for switch in switches} == {("dense", 1.0)}


def test_a_slower_device_hides_slower_links() -> None:
    slow = {"a": 1.5, "b": 1.5}
    events = (UnitMeasured(n, unit(n, 9).links, slow) for n in range(10))
    controller, switches = replay(started(9), events)
    assert set(rungs(controller).values()) == {"dense"}
    assert "takes 5 times as long to compute as planned" in switches[0].reason


def test_the_same_history_gives_the_same_decisions() -> None:
    draw = random.Random(3)
    history = [unit(n, draw.choice([4.0, 40.0, 400.0]) if n % 9 == 0 else 40.0) for n in range(100)]
    one, two = (replay(started(40), history) for _ in range(2))
    assert one == two


@settings(max_examples=60)
@given(planned=st.floats(1, 1000), real=st.floats(1, 1000), limit=st.sampled_from([QUANTISERS, ANY_LOSS]))
def test_at_a_constant_rate_each_link_changes_at_most_once(
    planned: float, real: float, limit: Limits
) -> None:
    _, switches = replay(started(planned, limit), (unit(n, real) for n in range(120)))
    links = [(switch.source, switch.target) for switch in switches]
    assert len(links) == len(set(links))


@pytest.mark.parametrize("limit", [QUANTISERS, ANY_LOSS])
def test_rates_that_jitter_by_a_fifth_change_nothing(limit: Limits) -> None:
    for seed in range(25):
        draw = random.Random(seed)
        mean = draw.uniform(2, 100)

        def jittering(number: int, draw: random.Random = draw, mean: float = mean) -> UnitMeasured:
            return unit(number, mean * draw.uniform(0.8, 1.2), mean * draw.uniform(0.8, 1.2))

        _, switches = replay(started(mean, limit), (jittering(n) for n in range(300)))
        for link in {(switch.source, switch.target) for switch in switches}:
            mine = [switch for switch in switches if (switch.source, switch.target) == link]
            assert len(mine) <= 2, [(s.unit, s.rung) for s in mine]


def alternating(period: int) -> Callable[[int], UnitMeasured]:
    return lambda number: unit(number, 40 if number // period % 2 else 7)


@pytest.mark.parametrize("period", [1, 2, 4, 7])
def test_a_link_with_swinging_rates_respects_the_dwell_time(period: int) -> None:
    _, switches = replay(started(40), map(alternating(period), range(200)))
    times = [switch.unit for switch in switches if switch.source == "a"]
    assert all(later - earlier >= DWELL for earlier, later in pairwise(times))
    if period < 3:
        assert len(times) <= 2  # nothing lasts long enough to be believed


def test_a_link_that_flips_back_doubles_its_dwell_time() -> None:
    """Short messages seem to come fast, long ones show that they do not."""
    controller, switches = replay(started(8), (unit(n, 8) for n in range(10)))
    for number in range(10, 400):
        is_short = "int8" in rungs(controller)["a", "b"]
        controller, more = on_event(controller, unit(number, 300 if is_short else 8))
        switches += more
    gentler = [switch.unit for switch in switches if switch.source == "a" and switch.rung == "dense"]
    pauses = [later - earlier for earlier, later in pairwise(gentler)]
    assert len(gentler) <= 8 and pauses[-1] >= 3 * pauses[0]


def test_a_sticky_rung_is_kept_for_longer() -> None:
    controller, _ = replay(started(100, ANY_LOSS), (unit(n, 1.0) for n in range(10)))
    assert "topk" in rungs(controller)["a", "b"]
    controller, switches = replay(controller, (unit(10 + n, 400) for n in range(40)))
    assert switches == []
    controller, switches = replay(controller, (unit(50 + n, 400) for n in range(10)))
    assert set(rungs(controller).values()) == {"dense"}


def test_a_movable_link_never_uses_a_sticky_rung() -> None:
    where = context({(0, 1): 1.0, (1, 0): 1.0}, workers=2)
    controller, _ = Controller.start(where, RUNGS, ANY_LOSS, frozenset({0, 1}))
    controller, _ = replay(controller, (unit(n, 0.5) for n in range(60)))
    assert not any("topk" in name for name in rungs(controller).values())


def test_a_request_of_the_guard_applies_at_once_and_lasts() -> None:
    controller, _ = replay(started(6), (unit(n, 6) for n in range(3)))
    before = rungs(controller)["b", "a"]
    controller, switches = on_event(controller, Relax(3, "held-out loss is 3 % too high", "b", "a"))
    (switch,) = switches
    assert switch.unit == 4 and switch.rung != before and "held-out loss is 3 %" in switch.reason
    after = rungs(controller)["b", "a"]
    controller, _ = replay(controller, (unit(4 + n, 3) for n in range(100)))
    order = [rung.name for rung in RUNGS]
    assert order.index(rungs(controller)["b", "a"]) <= order.index(after)
    for number in range(20):
        controller, _ = on_event(controller, Relax(200 + number, "still too high"))
    assert set(rungs(controller).values()) == {"dense"}


def test_relaxing_a_sticky_rung_changes_both_directions() -> None:
    controller, switches = on_event(started(1.0, ANY_LOSS), Relax(10, "too much"))
    assert len(switches) == 2
    assert not any("topk" in name or "masked" in name for name in rungs(controller).values())


def test_samples_of_this_jobs_tensors_change_a_choice() -> None:
    controller = started(8.0, compute_seconds=0.28)
    assert rungs(controller)["a", "b"] == "int8"
    controller, _ = on_event(controller, CodecsSampled(0, (sample("a", "b", "int8", 1.5, 0.007),)))
    controller, switches = on_event(controller, unit(1, 8.0))
    assert rungs(controller)["a", "b"] != "int8" and switches
    assert "codecs were tried on this job's own tensors" in switches[0].reason


def test_invalid_measurements_change_nothing() -> None:
    controller = started(40)
    for event in (
        UnitMeasured(
            0, (LinkMeasured("x", "y", 1.0), LinkMeasured("a", "b", None), LinkMeasured("a", "b", 0.0))
        ),
        UnitMeasured(1, (), {"stranger": 3.0, "a": 0.0}),
        CodecsSampled(2, (sample("x", "y", "int8", 4.0, 0.01),)),
        CodecsSampled(3, (sample("a", "b", "int8", 0.5, 0.01),)),
        CodecsSampled(3, (sample("a", "b", "int8", math.nan, 0.01),)),
        CodecsSampled(3, (sample("a", "b", "no codec of the ladder", 4.0, 0.01),)),
        UnitMeasured(3, (LinkMeasured("a", "b", math.nan), LinkMeasured("b", "a", -1.0)), {"a": math.inf}),
        Relax(4, "nothing there", "x", "y"),
        Relax(5, "nothing is compressed", "a", "b"),
    ):
        updated, switches = on_event(controller, event)
        assert switches == () and updated == controller


def gap(controller: Controller) -> float:
    return controller.estimated().loss_gap([controller.rungs[level] for level in controller.levels])


def test_rungs_whose_samples_exceed_the_limit_are_replaced_at_any_cost_in_time() -> None:
    limits = Limits(0.001, roughest="int8/int4-stochastic")
    where = context({(1, 0): 3.0}, workers=2, compute_seconds=0.01, microbatches=64)
    controller, _ = Controller.start(where, RUNGS, limits)
    link = controller.link("b", "a")
    assert link is not None and controller.rung(link).name == "int8/int4-stochastic"
    error = 2 * controller.rung(link).gradient.usual_error
    controller, _ = on_event(
        controller, CodecsSampled(0, (sample("b", "a", "int4-stochastic", 7.5, error, gradient=True),))
    )
    assert gap(controller) > limits.max_loss_gap
    controller, switches = on_event(controller, unit(1, 1000, 3))
    assert switches and gap(controller) <= limits.max_loss_gap


def test_a_link_that_must_wait_never_exceeds_the_limit_together_with_others() -> None:
    limits = Limits(0.0009, roughest="int8/int4-stochastic")
    where = context({}, workers=4, compute_seconds=0.01, microbatches=64)
    controller, _ = Controller.start(where, RUNGS, limits)
    back, switch_levels = [("b", "a"), ("c", "b"), ("d", "c")], 0
    for number in range(60):
        slow = back[number // 3 % 3]
        links = [LinkMeasured(*pair, (3 if pair == slow else 1000) * MEGABIT) for pair in back]
        controller, switches = on_event(controller, UnitMeasured(number, tuple(links)))
        switch_levels += len(switches)
        assert gap(controller) <= limits.max_loss_gap
    assert switch_levels > 5


def written(number: int, controller: Controller, swelling: float) -> UnitMeasured:
    """A unit at 8 Mbit/s whose payloads are so many times as large as expected."""
    context, links = controller.context, []
    for link, ends in enumerate(context.links):
        size = swelling * context.wire_bytes(link, controller.rung(link)) * context.microbatches[link]
        links.append(LinkWritten(ends.source, ends.target, controller.rung(link).name, round(size)))
    return UnitMeasured(number, unit(number, 8.0).links, written=tuple(links))


def test_a_rung_is_judged_by_the_bytes_that_it_writes() -> None:
    where = context({(0, 1): 8.0, (1, 0): 8.0}, workers=2, compute_seconds=0.1, microbatches=64)
    controller, _ = Controller.start(where, ladder(WITH_AXES), ANY_LOSS)
    assert set(rungs(controller).values()) == {AXES}
    as_expected, switches = replay(controller, (written(n, controller, 1.05) for n in range(20)))
    assert switches == [] and rungs(as_expected) == rungs(controller)
    swollen = controller
    for number in range(20):
        swollen, more = on_event(
            swollen, written(number, swollen, 4.0 if AXES in rungs(swollen).values() else 1.0)
        )
        switches += more
    assert AXES not in rungs(swollen).values()
    assert switches[0].unit <= 8 and f"smaller with {AXES}" in switches[0].reason
    still = controller.context.links[0]
    wide = swollen.estimated().wire_bytes(0, next(rung for rung in swollen.rungs if rung.name == AXES))
    assert wide == pytest.approx(4 * where.wire_bytes(0, controller.rung(0))) and still == where.links[0]


def test_implausible_byte_counts_of_a_worker_are_ignored() -> None:
    controller = started(8.0, compute_seconds=0.28)
    for size, rung in ((0, "int8"), (1, "int8"), (10**15, "int8"), (10**6, "dense"), (10**6, "int9")):
        for ends in (("a", "b"), ("x", "y")):
            updated, switches = on_event(
                controller, UnitMeasured(0, written=(LinkWritten(*ends, rung, size),))
            )
            assert switches == () and updated == controller


def started_rough() -> Controller:
    """Two workers whose lines are so slow that a rough rung is worth its loss, and none is sticky."""
    where = context({(0, 1): 1, (1, 0): 1}, workers=2, compute_seconds=0.3, microbatches=64)
    return Controller.start(where, ladder(), Limits(1.0, roughest="axes20/axes70-dithered"))[0]


def test_a_probe_writes_finely_and_then_as_before() -> None:
    before = started_rough()
    probed, switches = replay(
        before, [BeginProbe(10, "it stands still"), *(unit(10 + n, 1) for n in range(20))]
    )
    assert before.noise > PROBE_NOISE >= probed.noise
    assert {switch.unit for switch in switches} == {11}
    assert all("it stands still" in switch.reason for switch in switches)
    after, _ = replay(probed, [EndProbe(30, "not why", stalled=False)])
    assert (after.levels, after.limits, after.unprobed) == (before.levels, before.limits, None)


def test_after_a_stall_no_link_is_as_rough_as_before_whatever_its_rate() -> None:
    before = started_rough()
    events = [BeginProbe(10, "it stands still"), EndProbe(30, "that was why", stalled=True)]
    after, switches = replay(before, events)
    assert PROBE_NOISE < after.noise < before.noise and after.limits.most_noise < before.noise
    assert all("that was why" in switch.reason for switch in switches if switch.unit == 31)
    slower, _ = replay(after, (unit(40 + n, 0.1) for n in range(200)))
    assert slower.noise < before.noise


def test_what_is_relaxed_in_a_probe_stays_relaxed() -> None:
    before = started_rough()
    events = [BeginProbe(10, ""), Relax(15, "clipped", "a", "b"), EndProbe(30, "", stalled=False)]
    after, _ = replay(before, events)
    link = after.link("a", "b")
    assert link is not None and after.levels[link] == after.ceilings[link] < before.levels[link]


def test_links_that_write_finely_have_nothing_to_probe() -> None:
    fine = started(20)
    events = [BeginProbe(10, ""), EndProbe(30, "", stalled=True)]
    assert replay(fine, events) == (fine, [])


def test_no_probe_takes_a_rung_away_to_which_the_model_has_adapted() -> None:
    rough = started_rough()
    top = number_of("row-topk30-int4/masked30-int4", rough.rungs)
    sticky = replace(rough, levels=(top,) * len(rough.levels))
    assert sticky.noise > PROBE_NOISE
    assert on_event(sticky, BeginProbe(10, "it stands still")) == (sticky, ())


def test_what_the_guard_relaxes_stays_within_the_error_that_a_stall_left() -> None:
    """A rung that loses less in a long run can have the larger error."""
    noise = {rung.name: rung.noise for rung in ladder()}
    assert noise["int8/eden2"] > noise["axes10/axes100-dithered"]
    controller = started_rough()
    events = [BeginProbe(10, ""), EndProbe(30, "", stalled=True), *(Relax(40 + n, "") for n in range(20))]
    for event in events:
        controller, _ = on_event(controller, event)
        assert controller.noise <= controller.limits.most_noise
