from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from farflung.runtime.optimizers.declared import (
    SGD,
    Adafactor,
    AdamW,
    Group,
    Lion,
    Muon,
    Optimizer,
    learning_rate,
    recipe_of,
    unmatched_pattern,
)
from farflung.runtime.optimizers.schedules import Constant, WarmupCosine
from farflung.runtime.parity.optimizers import build, set_learning_rate

rates = st.floats(0, 10)
below_one = st.floats(0, 1, exclude_max=True)
schedules = st.builds(Constant, st.integers(0, 100)) | st.builds(
    WarmupCosine, st.integers(0, 100), st.integers(101, 1000), st.floats(0, 1)
)
betas = st.tuples(below_one, below_one)
patterns = st.lists(st.text(min_size=1, max_size=9), max_size=3).map(tuple)
common: dict[str, st.SearchStrategy[Any]] = {
    "lr": rates,
    "weight_decay": rates,
    "schedule": schedules,
    "no_decay": st.just("auto") | patterns,
    "groups": st.lists(
        st.builds(Group, patterns.filter(bool), lr_scale=rates, weight_decay=st.none() | rates), max_size=2
    ).map(tuple),
}
adamw = st.builds(AdamW, betas=betas, **common)
optimizers: st.SearchStrategy[Any] = st.one_of(
    adamw,
    st.builds(SGD, momentum=below_one, dampening=below_one, **common),
    st.builds(Lion, betas=betas, **common),
    st.builds(Adafactor, eps=st.tuples(st.none() | rates, rates), d=st.floats(1, 5), **common),
    st.builds(
        Muon, others=adamw, momentum=below_one, ns_steps=st.integers(1, 99), excluded=patterns, **common
    ),
)


@settings(max_examples=50)
@given(optimizers)
def test_a_declaration_travels_unchanged(optimizer: Optimizer) -> None:
    wire = msgspec.msgpack.encode(optimizer)
    assert msgspec.msgpack.decode(wire, type=Optimizer) == optimizer


def test_a_constant_rate_rises_and_stays() -> None:
    optimizer = AdamW(lr=0.3, schedule=Constant(warmup_steps=2))
    assert [learning_rate(optimizer, step) for step in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.3])
    assert learning_rate(AdamW(lr=0.3), 0) == 0.3


def test_a_cosine_rises_falls_to_its_minimum_and_stays_there() -> None:
    optimizer = SGD(lr=1.0, schedule=WarmupCosine(warmup_steps=4, total_steps=104, minimum_ratio=0.2))
    rate = [learning_rate(optimizer, step) for step in range(200)]
    assert rate[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rate[54] == pytest.approx(0.6)
    assert rate[104:] == pytest.approx([0.2] * 96)
    assert all(after <= before for before, after in pairwise(rate[4:]))


CASES: list[tuple[Optimizer, Any, dict[str, Any]]] = [
    (AdamW(lr=0.1), torch.optim.AdamW, {"lr": 0.1}),
    (
        AdamW(lr=0.1, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.5),
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.5},
    ),
    (SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    (
        SGD(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    ),
]


@pytest.mark.parametrize(("declared", "of_torch", "numbers"), CASES)
def test_built_optimizers_step_like_torchs_own(
    declared: Optimizer, of_torch: Any, numbers: dict[str, Any]
) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    steppers = [build(declared, [ours]), of_torch([theirs], **numbers)]
    for step in range(5):
        for parameter in (ours, theirs):
            parameter.grad = torch.linspace(step, 1, 7)
        for stepper in steppers:
            stepper.step()
    assert torch.equal(ours, theirs)


def test_the_built_optimizer_follows_the_schedule() -> None:
    declared = AdamW(lr=1.0, schedule=Constant(warmup_steps=3))
    built = build(declared, [nn.Parameter(torch.zeros(1))])
    assert built.param_groups[0]["lr"] == 0.25
    set_learning_rate(built, 2)
    assert built.param_groups[0]["lr"] == 0.75


def test_the_first_group_that_matches_counts() -> None:
    declared = AdamW(
        lr=1.0,
        weight_decay=0.5,
        no_decay="auto",
        groups=(Group("head.*", lr_scale=0.1), Group("*.bias", lr_scale=0.2, weight_decay=0.3)),
    )
    found = {name: recipe_of(declared, name, shape)[1:] for name, shape in SHAPES.items()}
    assert found == {
        "a.weight": (1.0, 0.5), "a.bias": (0.2, 0.3), "norm": (1.0, 0.0), "head.bias": (0.1, 0.0)
    }  # fmt: skip


def test_muon_leaves_what_is_no_matrix_or_excluded_to_the_other() -> None:
    others = AdamW(lr=0.5, weight_decay=0.2, no_decay="auto")
    muon = Muon(lr=1.0, others=others, excluded="head.*")  # type: ignore[arg-type]  # one pattern will do
    found = {name: recipe_of(muon, name, shape) for name, shape in {**SHAPES, "head.weight": (3, 2)}.items()}
    assert {name for name, recipe in found.items() if recipe.declared == muon} == {"a.weight"}
    assert found["head.weight"] == (others, 1.0, 0.2) and found["norm"] == (others, 1.0, 0.0)


SHAPES = {"a.weight": (3, 2), "a.bias": (3,), "norm": (3,), "head.bias": (2,)}


@pytest.mark.parametrize(
    ("declared", "pattern"),
    [
        (AdamW(lr=0.1, no_decay=("*.bias", "*.beta")), "*.beta"),
        (Lion(lr=0.1, groups=(Group(("norm", "tail")),)), "tail"),
        (Muon(lr=0.1, others=AdamW(lr=0.1, no_decay=("gone",))), "gone"),
        (Muon(lr=0.1, others=AdamW(lr=0.1), excluded=("emb*",)), "emb*"),
        (AdamW(lr=0.1, no_decay="auto", groups=(Group("a.*"), Group("head.*"))), None),
    ],
)
def test_a_pattern_that_fits_nothing_is_found(declared: Optimizer, pattern: str | None) -> None:
    assert unmatched_pattern(declared, SHAPES) == pattern


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.1", None, True])
@pytest.mark.parametrize("field", ["lr", "eps", "weight_decay"])
def test_numbers_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be a finite number, at least 0, found"):
        AdamW(**({"lr": 0.1} | {field: value}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamW(lr=0.1, betas=(0.9, 1.0)), r"betas must be .* at least 0 and below 1, found 1\.0"),
        (lambda: AdamW(lr=0.1, betas=0.9), r"betas must be a tuple of two numbers, found 0\.9"),  # type: ignore[arg-type]
        (lambda: AdamW(lr=0.1, schedule="cosine"), r"schedule must be one of farflung's"),  # type: ignore[arg-type]
        (lambda: SGD(lr=0.1, momentum=1.0), "momentum must be .* below 1"),
        (lambda: SGD(lr=0.1, nesterov=True), "nesterov needs a momentum"),
        (lambda: SGD(lr=0.1, nesterov=True, momentum=0.9, dampening=0.1), "nesterov needs a momentum"),
        (lambda: Constant(warmup_steps=-1), "warmup_steps must be a whole number from 0"),
        (lambda: Lion(lr=0.1, betas=(1.0, 0.5)), "betas must be .* below 1"),
        (lambda: Adafactor(lr=0.1, eps=0.1), "eps must be a tuple of two numbers"),
        (lambda: Adafactor(lr=0.1, d=0.5), "d must be .* at least 1"),
        (lambda: Adafactor(lr=0.1, beta2_decay=0.8), "beta2_decay must be .* at most 0"),
        (lambda: Muon(lr=0.1), r"Muon updates matrices only: give it others=farflung\.AdamW"),
        (lambda: Muon(lr=0.1, others=AdamW(lr=0.1, ema=0.5), ema=0.9), "ema of others is that of Muon, 0.9"),
        (lambda: AdamW(lr=0.1, ema=1.0), "ema must be a finite number, at least 0 and below 1, found 1.0"),
        (lambda: Muon(lr=0.1, others=SGD(lr=0.1)), r"others must be farflung\.AdamW"),
        (lambda: Muon(lr=0.1, others=AdamW(lr=0.1), ns_steps=100), "ns_steps must be .* from 1 to 99"),
        (
            lambda: Muon(lr=0.1, others=AdamW(lr=0.1), adjust_lr_fn="rms"),
            "adjust_lr_fn must be 'original'",
        ),
        (lambda: Muon(lr=0.1, others=AdamW(lr=0.1), ns_coefficients=(1.0,)), "tuple of three numbers"),
        (lambda: AdamW(lr=0.1, no_decay=3), "no_decay must be patterns of names"),
        (lambda: AdamW(lr=0.1, no_decay=("",)), "no_decay must be patterns of 1 to 256 characters"),
        (lambda: AdamW(lr=0.1, groups=("head.*",)), r"groups must be farflung\.Group"),
        (lambda: Group(()), "names of a group must have at least one pattern"),
        (lambda: Group("a", lr_scale=-1), "lr_scale must be .* at least 0"),
        (lambda: WarmupCosine(10, 10), "total_steps must be a whole number from 11"),
        (lambda: WarmupCosine(1, 10, 1.5), "minimum_ratio must be .* at most 1"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "AdamW", "lr": -1.0},
        {"type": "AdamW", "lr": math.nan},
        {"type": "AdamW", "lr": 0.1, "betas": [0.9]},
        {"type": "AdamW", "lr": 0.1, "fused": True},
        {"type": "Sophia", "lr": 0.1},
        {"type": "AdamW", "lr": 0.1, "no_decay": ["x" * 257]},
        {"type": "AdamW", "lr": 0.1, "no_decay": ["x"] * 257},
        {"type": "AdamW", "lr": 0.1, "groups": [{"names": []}]},
        {"type": "AdamW", "lr": 0.1, "groups": [{"names": ["x"], "lr_scale": math.inf}]},
        {"type": "Adafactor", "lr": 0.1, "eps": [0.1, -1.0]},
        {"type": "Muon", "lr": 0.1},
        {"type": "Muon", "lr": 0.1, "others": {"type": "SGD", "lr": 0.1}},
        {"type": "Muon", "lr": 0.1, "others": {"type": "AdamW", "lr": 0.1}, "ns_steps": 10**6},
        {"type": "SGD", "lr": 0.1, "schedule": {"type": "WarmupCosine", "warmup_steps": 5, "total_steps": 5}},
        {"type": "SGD", "lr": 0.1, "schedule": {"type": "Constant", "warmup_steps": 2**60}},
    ],
)
def test_optimizers_from_a_peer_are_held_to_the_same_ranges(sent: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Optimizer)
