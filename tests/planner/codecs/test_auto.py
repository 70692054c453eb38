from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planner.codecs.chains import context, home_line, topology
from tests.planner.codecs.tables import RUNGS, TABLE

from farflung.errors import CodecError
from farflung.planner.codecs.auto import Choice, choose, seconds_to_loss
from farflung.planner.codecs.codec_context import CodecContext
from farflung.planner.codecs.ladder import LEAST_GAP, Loss, costed, number_of
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.pace import pace_of
from farflung.planner.codecs.plan_context import codec_context
from farflung.plans import FEEDER, Edge, Placement, Plan
from farflung.runtime.parcel import CodecSample
from farflung.simulator import Conditions, simulate

ANY_LOSS = Limits(1.0)


def names(where: CodecContext, choice: Choice) -> dict[tuple[str, str], str]:
    return {
        (link.source, link.target): RUNGS[level].name
        for link, level in zip(where.links, choice.levels, strict=True)
    }


def test_fast_links_stay_dense() -> None:
    where = context({}, megabytes=1.0, compute_seconds=0.5)
    choice = choose(where, RUNGS, ANY_LOSS)
    assert set(names(where, choice).values()) == {"dense"}
    assert choice.loss_gap == 0 and choice.notes == ()
    assert all("hides behind" in reason for reason in choice.reasons)


def test_a_slow_link_gets_the_gentlest_rung_that_hides_it_and_others_none() -> None:
    """1 MB takes 0.4 s on 20 Mbit/s, 0.2 s in bf16 and 0.1 s in int8, beside 0.25 s of computing."""
    where = context({(0, 1): 20.0, (1, 0): 20.0}, compute_seconds=0.25, microbatches=64)
    found = names(where, choose(where, RUNGS, ANY_LOSS))
    assert found == {("a", "b"): "bf16", ("b", "a"): "bf16", ("b", "c"): "dense", ("c", "b"): "dense"}


def test_less_than_a_millisecond_a_step_is_worth_no_codec() -> None:
    """As on loopback, where estimates of microseconds change from step to step."""

    def found(scale: float) -> set[str]:
        links = {(0, 1): 20.0 / scale, (1, 0): 20.0 / scale}
        where = context(links, compute_seconds=0.25 * scale, microbatches=16, workers=2)
        return set(names(where, choose(where, RUNGS, ANY_LOSS)).values())

    assert found(1.0) == {"int8"}
    assert found(1e-4) == {"dense"}


def test_each_direction_gets_its_own_rung() -> None:
    """Gradients have 8 Mbit/s and need a quarter of their bytes, activations have 24 and need none."""
    where = context({(0, 1): 24.0, (1, 0): 9.0}, compute_seconds=0.35, microbatches=64, workers=2)
    found = names(where, choose(where, RUNGS, ANY_LOSS))
    assert found == {("a", "b"): "dense", ("b", "a"): "int8"}


def test_both_directions_of_a_link_use_a_sticky_rung_or_neither() -> None:
    where = context({(0, 1): 1.0, (1, 0): 4.0}, compute_seconds=0.1, workers=2, microbatches=32)
    found = names(where, choose(where, RUNGS, ANY_LOSS))
    assert found["a", "b"] == found["b", "a"] and "topk" in found["a", "b"]
    still = choose(where, RUNGS, ANY_LOSS, movable={0})
    assert not any(RUNGS[level].is_sticky for level in still.levels)


def test_the_loss_budget_is_spent_where_it_saves_the_most_seconds() -> None:
    """Both links are slow, one twice as slow; the budget has room for one rough boundary."""
    where = context({(0, 1): 2.0, (1, 0): 2.0, (1, 2): 4.0, (2, 1): 4.0}, compute_seconds=0.1)
    rough = RUNGS[number_of("row-topk30-int4/masked30-int4", RUNGS)]
    choice = choose(where, RUNGS, Limits(1.05 * rough.loss_gap))
    found = names(where, choice)
    assert choice.loss_gap <= 1.05 * rough.loss_gap
    assert "topk" in found["a", "b"] and "topk" not in found["b", "c"]


@pytest.mark.parametrize("budget", [0.0, 0.0005, 0.002, 0.01, 0.03, 0.2])
def test_a_larger_loss_budget_is_never_slower_and_never_exceeded(budget: float) -> None:
    where = context({(0, 1): 2.0, (1, 0): 8.0, (1, 2): 30.0, (2, 1): 3.0}, compute_seconds=0.05)
    choice = choose(where, RUNGS, Limits(budget))
    more = choose(where, RUNGS, Limits(2 * budget))
    assert choice.loss_gap <= budget + 1e-9

    def score(one: Choice) -> float:
        return seconds_to_loss(one.pace.step_seconds, one.loss_gap)

    assert score(more) <= 1.03 * score(choice)


def test_notes_name_links_that_a_limit_keeps_slow() -> None:
    where = context({(0, 1): 8.0, (1, 0): 8.0}, compute_seconds=0.1, workers=2)
    choice = choose(where, RUNGS, Limits(0.002))
    assert len(choice.notes) == 2
    for note in choice.notes:
        assert "\n" not in note
        assert "stays slow" in note and "would hide that, but" in note and "0.2 % loss" in note
    there, back = sorted(choice.notes)
    assert there.startswith("link a -> b") and "; row-topk30-int4/masked30-int4 (1" in there
    assert back.startswith("link b -> a") and "; int8/eden2 (6" in back
    ratio = choose(where, RUNGS, Limits(1.0, most_ratio=4.0))
    assert max(RUNGS[level].gradient.ratio for level in ratio.levels) <= 4.0
    assert "a ratio of 4" in ratio.notes[0]
    rough = choose(where, RUNGS, Limits(1.0, roughest="int8"))
    assert max(rough.levels) <= number_of("int8", RUNGS)
    assert "codec pair int8" in rough.notes[0]
    hopeless = choose(context({(0, 1): 0.01}, workers=2), RUNGS, ANY_LOSS)
    assert "no codec pair on the ladder hides that" in hopeless.notes[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limits(max_loss_gap=-0.1), "between 0 and 1"),
        (lambda: Limits(max_loss_gap=math.nan), "between 0 and 1"),
        (lambda: Limits(most_ratio=0.5), "at least 1"),
        (lambda: choose(context({}), RUNGS, Limits(roughest="int5")), "not on the ladder of auto"),
        (lambda: costed("topk1-bf16"), "was never measured"),
        (lambda: costed("int9"), "there is no codec"),
    ],
)
def test_invalid_limits_are_an_error_of_one_line(make: object, words: str) -> None:
    with pytest.raises(CodecError, match=words) as error:
        make()  # type: ignore[operator]
    assert "\n" not in str(error.value)


def test_links_that_share_an_access_line_count_together() -> None:
    """One worker sends to two others over one line: alone each message would hide."""
    edges = [Edge(0, FEEDER, 0, 64, False), Edge(1, 0, 1, 10**6, True), Edge(2, 0, 2, 10**6, True)]
    placements = [Placement(n, [name], 10**11, 1, 1) for n, name in enumerate("abc")]
    plan = Plan(placements, edges, microbatches=32, window=32)
    conditions = Conditions(payload_share=1.0)
    net = home_line(topology({}), 0, 40.0)
    where = codec_context(plan, net, conditions)
    assert all(where.message_seconds(link, RUNGS[0]) < 0.3 for link in range(4))
    assert pace_of(where, [RUNGS[0]] * 4).bottleneck == "the access line out of a"
    found = names(where, choose(where, RUNGS, ANY_LOSS))
    assert sorted([found["a", "b"], found["a", "c"]]) in (["bf16", "bf16"], ["bf16", "dense"])


def test_a_codec_that_is_slower_than_its_link_is_not_chosen() -> None:
    """At 10 Gbit/s a tensor is there before a rotation of it would be."""
    where = context({}, megabytes=100.0, compute_seconds=0.0003, workers=2)
    where = where.with_rates([1.25e9] * 2)
    for level in choose(where, RUNGS, ANY_LOSS).levels:
        rung = RUNGS[level]
        for link in range(2):
            dense = where.message_seconds(link, RUNGS[0])
            assert max(where.coding_seconds(link, rung)) < dense


def test_samples_override_declared_ratios() -> None:
    where = context({(0, 1): 8.0, (1, 0): 8.0}, compute_seconds=0.28, workers=2, microbatches=64)
    assert names(where, choose(where, RUNGS, ANY_LOSS))["a", "b"] == "int8"
    worse = CodecContext(
        where.links, where.lines, where.pipelines, where.machines, 1.0,
        {(0, "int8", False): CodecSample("int8", False, True, 2.0, 0.006, 0.0, 0.0)},
    )  # fmt: skip
    assert names(worse, choose(worse, RUNGS, ANY_LOSS))["a", "b"] != "int8"
    table = {"int8": Loss(3.9, plain_gap=0.03)}
    lossy = (*RUNGS[:2], costed("int8", table))
    noisy = CodecContext(
        where.links, where.lines, where.pipelines, where.machines, 1.0,
        {(0, "int8", False): CodecSample("int8", False, True, 4.0, 0.02, 0.0, 0.0)},
    )  # fmt: skip
    assert noisy.loss_gap([lossy[2]] * 2) == pytest.approx(4 * 0.01)


def test_measured_noise_never_counts_as_a_gain() -> None:
    assert TABLE["int8"].plain_gap < 0 and costed("int8", TABLE).loss_gap == LEAST_GAP / 3
    assert costed("int8/eden2", TABLE).loss_gap == pytest.approx(0.0119 / 3)


@settings(max_examples=40)
@given(
    rates=st.lists(st.floats(1.0, 500.0), min_size=4, max_size=4),
    compute=st.floats(0.01, 1.0),
    microbatches=st.integers(1, 16),
    budget=st.sampled_from([0.0, 0.005, 0.05]),
)
def test_a_choice_keeps_every_limit_and_is_never_slower_than_dense(
    rates: list[float], compute: float, microbatches: int, budget: float
) -> None:
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1)]
    where = context(dict(zip(pairs, rates, strict=True)), compute_seconds=compute, microbatches=microbatches)
    choice = choose(where, RUNGS, Limits(budget))
    assert choice.loss_gap <= budget + 1e-9
    assert choice.pace.step_seconds <= choice.dense_step_seconds * (1 + 1e-9)
    for link, level in enumerate(choice.levels):
        if RUNGS[level].is_sticky:
            assert {choice.levels[other] for other in where.pairs[link]} == {level}
    assert choose(where, RUNGS, Limits(budget)) == choice


def test_the_pace_of_a_chain_agrees_with_the_simulator() -> None:
    rates = {(0, 1): 20.0, (1, 0): 20.0}
    plan = Plan(
        [Placement(n, [name], 10**11, 1, 1) for n, name in enumerate("abc")],
        [Edge(0, FEEDER, 0, 0, False), Edge(1, 0, 1, 10**6, True), Edge(2, 1, 2, 10**6, True)],
        microbatches=16,
        window=16,
    )
    conditions = Conditions(payload_share=1.0, commit=False)
    net = topology(rates)
    guide = pace_of(codec_context(plan, net, conditions), [RUNGS[0]] * 4).step_seconds
    assert guide == pytest.approx(simulate(plan, net, conditions).step_seconds, rel=0.15)
