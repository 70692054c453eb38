"""Schedules named as in torch give torch's rates; the others what their papers say."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from farflung.runtime.optimizers.declared import SGD, AdamW, learning_rate
from farflung.runtime.optimizers.schedules import (
    WSD,
    Constant,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    Schedule,
    StepLR,
    Table,
    WarmupCosine,
    end_of,
)

LR = 0.3
OfTorch = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def one_cycle(**options: Any) -> OfTorch:
    return lambda built: lr_scheduler.OneCycleLR(
        built, max_lr=LR, total_steps=40, cycle_momentum=False, **options
    )


CASES: list[tuple[Schedule, OfTorch]] = [
    (LinearLR(), lambda built: lr_scheduler.LinearLR(built)),
    (LinearLR(1.0, 0.0, 30), lambda built: lr_scheduler.LinearLR(built, 1.0, 0.0, 30)),
    (CosineAnnealingLR(39), lambda built: lr_scheduler.CosineAnnealingLR(built, 39)),
    (CosineAnnealingLR(50, 0.1), lambda built: lr_scheduler.CosineAnnealingLR(built, 50, 0.1 * LR)),
    (StepLR(7), lambda built: lr_scheduler.StepLR(built, 7)),
    (StepLR(1, 0.5), lambda built: lr_scheduler.StepLR(built, 1, 0.5)),
    (MultiStepLR((3, 9, 9, 30), 0.5), lambda built: lr_scheduler.MultiStepLR(built, [3, 9, 9, 30], 0.5)),
    (ExponentialLR(0.9), lambda built: lr_scheduler.ExponentialLR(built, 0.9)),
    (OneCycleLR(40), one_cycle()),
    (OneCycleLR(40, 0.1, "linear", 10.0, 100.0), one_cycle(
        pct_start=0.1, anneal_strategy="linear", div_factor=10.0, final_div_factor=100.0
    )),
    (OneCycleLR(40, pct_start=0.4, three_phase=True), one_cycle(pct_start=0.4, three_phase=True)),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "of_torch"), CASES, ids=[str(declared) for declared, _ in CASES])
def test_rates_are_torchs(declared: Schedule, of_torch: OfTorch) -> None:
    built = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = of_torch(built)
    for step in range(40):
        expected = built.param_groups[0]["lr"]
        assert learning_rate(SGD(lr=LR, schedule=declared), step) == pytest.approx(expected, abs=1e-12), step
        built.step()
        if step < 39:  # torch's one cycle has no step after its last
            scheduler.step()


@pytest.mark.parametrize(
    "schedule", [OneCycleLR(40), CosineAnnealingLR(40), LinearLR(total_iters=40)], ids=str
)
def test_a_rate_stays_after_its_last_step(schedule: Schedule) -> None:
    assert schedule.ratio(41) == schedule.ratio(10_000)


def test_warmup_stable_decay_has_three_parts() -> None:
    rates = [WSD(warmup_steps=4, stable_steps=6, decay_steps=10).ratio(step) for step in range(30)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:11] == [1.0] * 7
    assert rates[15] == pytest.approx(0.5)
    assert rates[20:] == [0.0] * 10
    root = WSD(0, 0, 4, minimum_ratio=0.2, decay="1-sqrt")
    assert [root.ratio(step) for step in (0, 1, 4, 9)] == pytest.approx([1.0, 0.2 + 0.8 * 0.5, 0.2, 0.2])
    cosine = WSD(0, 0, 4, decay="cosine")
    assert cosine.ratio(1) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_a_table_has_straight_lines_between_its_points() -> None:
    table = Table([(2, 0.5), (4, 1.0), (14, 0.0)])  # type: ignore[arg-type]  # a list will do
    assert [table.ratio(step) for step in (0, 2, 3, 4, 9, 14, 99)] == [0.5, 0.5, 0.75, 1.0, 0.5, 0.0, 0.0]
    assert AdamW(lr=1.0, schedule=table) == AdamW(lr=1.0, schedule=Table(((2, 0.5), (4, 1.0), (14, 0.0))))


ratios = st.floats(0, 1)
counts = st.integers(1, 200)
decays = st.sampled_from(["linear", "cosine", "1-sqrt"])
anneals = st.sampled_from(["cos", "linear"])
schedules: st.SearchStrategy[Any] = st.one_of(
    st.builds(Constant, st.integers(0, 100)),
    st.builds(WarmupCosine, st.integers(0, 100), st.integers(101, 1000), ratios),
    st.builds(WSD, st.integers(0, 50), st.integers(0, 50), counts, ratios, decays),
    st.builds(LinearLR, ratios, ratios, counts),
    st.builds(CosineAnnealingLR, counts, ratios),
    st.builds(StepLR, counts, ratios),
    st.builds(MultiStepLR, st.lists(st.integers(0, 100), max_size=4).map(sorted).map(tuple), ratios),
    st.builds(ExponentialLR, ratios),
    st.builds(OneCycleLR, counts, ratios, anneals, st.floats(1, 1e3), st.floats(1, 1e6), st.booleans()),
    st.dictionaries(st.integers(0, 300), ratios, min_size=1, max_size=5).map(
        lambda points: Table(tuple(sorted(points.items())))
    ),
)  # fmt: skip


@settings(max_examples=200)
@given(schedules, st.integers(0, 5000))
def test_every_schedule_is_a_share_of_the_declared_rate_and_travels(schedule: Any, step: int) -> None:
    assert -1e-12 <= schedule.ratio(step) <= 1 + 1e-12
    sent = msgspec.msgpack.encode(AdamW(lr=1.0, schedule=schedule))
    read = msgspec.msgpack.decode(sent, type=AdamW)
    assert read.schedule == schedule and read.schedule.ratio(step) == schedule.ratio(step)


@given(st.lists(st.tuples(st.integers(0, 100), ratios), min_size=2, max_size=6, unique_by=lambda p: p[0]))
def test_a_table_never_leaves_its_neighbours(points: list[tuple[int, float]]) -> None:
    table = Table(tuple(sorted(points)))
    for (begin, first), (end, last) in pairwise(sorted(points)):
        for step in range(begin, end + 1):
            assert min(first, last) - 1e-12 <= table.ratio(step) <= max(first, last) + 1e-12


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WSD(1, 1, 0), "decay_steps must be a whole number from 1"),
        (
            lambda: WSD(1, 1, 1, decay="steep"),
            "decay must be 'linear' or 'cosine' or '1-sqrt', found 'steep'",
        ),
        (lambda: LinearLR(start_factor=1.5), "start_factor must be .* at most 1"),
        (lambda: CosineAnnealingLR(0), "T_max must be a whole number from 1"),
        (lambda: StepLR(0), "step_size must be"),
        (lambda: MultiStepLR((3, 1)), r"milestones must ascend, found \(3, 1\)"),
        (lambda: MultiStepLR(3), "milestones must be a list"),
        (lambda: ExponentialLR(1.1), "gamma must be .* at most 1"),
        (lambda: OneCycleLR(10, div_factor=0.5), "div_factor must be .* at least 1"),
        (lambda: OneCycleLR(10, three_phase=1), "three_phase must be True or False"),
        (lambda: Table(()), "points must have at least one pair"),
        (lambda: Table(((1, 0.5), (1, 0.6))), "steps of points must ascend"),
        (lambda: Table(((1, math.nan),)), "factor of a point must be a finite number"),
        (lambda: Table((1, 0.5)), r"points must be pairs \(step, factor\)"),
    ],
)
def test_what_means_nothing_is_refused_by_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 200), st.floats(0.0, 0.9))
def test_a_schedule_keeps_its_last_rate_from_its_end_on(
    first: int, more: int, later: int, ratio: float
) -> None:
    last = first + more
    for schedule in (
        WarmupCosine(first, last, ratio),
        WSD(first, 3, more, ratio),
        LinearLR(1.0, ratio, last),
        CosineAnnealingLR(last, ratio),
        OneCycleLR(last),
        Table(((0, 1.0), (last, ratio))),
    ):
        end = end_of(schedule)
        assert end is not None
        assert schedule.ratio(end[1] + later) == schedule.ratio(end[1]) == schedule.ratio(end[1] + later + 1)


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "Table", "points": []},
        {"type": "Table", "points": [[5, 0.1], [4, 0.1]]},
        {"type": "Table", "points": [[step, 0.1] for step in range(10_001)]},
        {"type": "MultiStepLR", "milestones": [-1]},
        {"type": "StepLR", "step_size": 0},
        {"type": "OneCycleLR", "total_steps": 5, "anneal_strategy": "exp"},
    ],
    ids=str,
)  # fmt: skip
def test_schedules_from_a_peer_are_held_to_the_same_ranges(sent: dict[str, Any]) -> None:
    whole = {"type": "AdamW", "lr": 0.1, "schedule": sent}
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=AdamW)
