"""Someone who gives one of torch's optimizers reads what to declare instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.localhost.jobs import Chain, job
from torch import nn

import farflung
from farflung.errors import JobError
from farflung.runtime.optimizers.declared import recipe_of
from farflung.runtime.optimizers.of_torch import declared_instead

LAYER = nn.Linear(2, 2)
CASES: list[tuple[Any, str]] = [
    (torch.optim.AdamW(LAYER.parameters(), lr=3e-4), "farflung.AdamW(lr=0.0003)"),
    (
        torch.optim.AdamW(LAYER.parameters(), lr=torch.tensor(0.5), betas=(0.9, 0.95), weight_decay=0.1),
        "farflung.AdamW(lr=0.5, betas=(0.9, 0.95), weight_decay=0.1)",
    ),
    (torch.optim.Adam(LAYER.parameters(), lr=1e-3), "farflung.AdamW(lr=0.001, weight_decay=0)"),
    (
        torch.optim.SGD(LAYER.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "farflung.SGD(lr=0.1, momentum=0.9, nesterov=True)",
    ),
    (
        torch.optim.RMSprop(LAYER.parameters(), lr=0.01),
        "farflung.AdamW(lr=0.01, betas=(0, 0.99), weight_decay=0), which is RMSprop but for Adam's correction"
        " of the first steps",
    ),
    (torch.optim.Adafactor(LAYER.parameters(), lr=0.01), "farflung.Adafactor(lr=0.01)"),
    (
        torch.optim.Muon([LAYER.weight], lr=0.02, momentum=0.9),
        "farflung.Muon(lr=0.02, momentum=0.9, others=farflung.AdamW(lr=...))",
    ),
    (
        torch.optim.Muon([LAYER.weight], lr=0.02, adjust_lr_fn="match_rms_adamw"),
        "farflung.Muon(lr=0.02, adjust_lr_fn='match_rms_adamw', others=farflung.AdamW(lr=...))",
    ),
    (
        torch.optim.SGD([{"params": [LAYER.weight]}, {"params": [LAYER.bias], "lr": 1.0}], lr=0.1),
        "farflung.SGD(lr=0.1, groups=(farflung.Group(...), ...))",
    ),
]


@pytest.mark.parametrize(("given", "declared"), CASES)
def test_the_declaration_has_the_numbers_of_what_was_given(given: Any, declared: str) -> None:
    assert declared_instead(given) == declared


@pytest.mark.parametrize(
    "given",
    [
        torch.optim.Adam(LAYER.parameters(), lr=1e-3, weight_decay=0.1),
        torch.optim.AdamW(LAYER.parameters(), lr=1e-3, amsgrad=True),
        torch.optim.RMSprop(LAYER.parameters(), lr=1e-3, momentum=0.5),
        torch.optim.RMSprop(LAYER.parameters(), lr=1e-3, weight_decay=0.1),
        torch.optim.RMSprop(LAYER.parameters(), lr=1e-3, centered=True),
        torch.optim.SGD([{"params": [LAYER.weight]}, {"params": [LAYER.bias], "momentum": 0.5}], lr=0.1),
    ],
)
def test_an_optimizer_without_an_equal_one_gets_the_list_of_all(given: Any) -> None:
    declared = declared_instead(given)
    assert declared is not None and "Lion" in declared


def test_a_job_with_one_of_torch_is_refused_in_one_line() -> None:
    for given, declared in CASES[:1]:
        with pytest.raises(JobError) as raised:
            job(optimizer=given)
        assert "optimizer is a torch.optim.Optimizer (AdamW)" in str(raised.value)
        assert str(raised.value).endswith(f"write optimizer={declared}") and "\n" not in str(raised.value)
    model = Chain()
    first, *others = model.layers
    groups = [{"params": first.parameters(), "lr": 0.25}, {"params": nn.ModuleList(others).parameters()}]
    with pytest.raises(JobError, match=r"groups=\(farflung\.Group\('layers\.0\.\*', lr_scale=0\.5\),\)\)$"):
        job(model=model, optimizer=torch.optim.SGD(groups, lr=0.5))
    assert declared_instead(farflung.AdamW(lr=1.0)) is None and declared_instead(0.1) is None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)


class Model(nn.Module):
    """With groups as people make them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 8)


def groups_of(model: Model, how: str) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    vectors = [one for one in named.values() if one.ndim < 2]
    matrices = [one for one in named.values() if one.ndim > 1]
    head = [*model.head.parameters()]
    body = [one for name, one in named.items() if not name.startswith("head.")]
    return {
        "no decay": [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        "norms": [
            {"params": [one for name, one in named.items() if "norm" not in name], "weight_decay": 0.1},
            {"params": [one for name, one in named.items() if "norm" in name], "weight_decay": 0.0},
        ],
        "head": [{"params": head, "lr": 0.5}, {"params": body}],
        "head alone": [{"params": head}],
        "embed": [
            {"params": [one for one in body if one is not model.embed.weight]},
            {"params": head, "lr": 0.5, "weight_decay": 0.25},
        ],
    }[how]


@pytest.mark.parametrize(
    ("how", "declared"),
    [
        ("no decay", "lr=0.125, weight_decay=0.1, no_decay='auto'"),
        (
            "norms",
            "lr=0.125, weight_decay=0.1, groups=(GROUP(('*.norm.bias', '*.norm.weight'), weight_decay=0),)",
        ),
        ("head", "lr=0.125, groups=(GROUP('head.*', lr_scale=4),)"),
        ("head alone", "lr=0.125, groups=(GROUP(('blocks.*', 'embed.*'), lr_scale=0),)"),
        (
            "embed",
            "lr=0.125, groups=(GROUP('head.*', lr_scale=4, weight_decay=0.25),"
            " GROUP('embed.*', lr_scale=0),)",
        ),
    ],
)
def test_groups_are_spelled_out_by_names(how: str, declared: str) -> None:
    """Evaluated, the declaration gives each parameter the numbers that torch gives it."""
    model = Model()
    given = torch.optim.AdamW(groups_of(model, how), lr=0.125)
    named = dict(model.named_parameters())
    found = declared_instead(given, {id(one): name for name, one in named.items()})
    assert found == f"farflung.AdamW({declared.replace('GROUP', 'farflung.Group')})"
    made = eval(found, {"farflung": farflung})  # noqa: S307 - what a user would paste
    numbers = {id(one): group for group in given.param_groups for one in group["params"]}
    for name, one in named.items():
        recipe = recipe_of(made, name, one.shape)
        expected = numbers.get(id(one))
        assert recipe.lr_scale * made.lr == (0 if expected is None else expected["lr"])
        if expected is not None:
            assert recipe.weight_decay == expected["weight_decay"]


def test_a_rate_that_a_schedule_has_changed_is_the_first_one() -> None:
    given = torch.optim.SGD(LAYER.parameters(), lr=0.5)
    torch.optim.lr_scheduler.LinearLR(given, start_factor=0.25)
    assert given.param_groups[0]["lr"] == 0.125 and declared_instead(given) == "farflung.SGD(lr=0.5)"


def test_rmsprop_is_adamw_without_momentum_but_for_the_correction() -> None:
    """The second moment of AdamW is larger by 1 / (1 - alpha^t), whose root the step has below it."""
    start, alpha, steps = torch.linspace(-1, 1, 7), 0.75, 4
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(7, generator=generator) for _ in range(steps)]
    moved = {}
    for kind, options in (
        (torch.optim.RMSprop, {"alpha": alpha}),
        (torch.optim.AdamW, {"betas": (0.0, alpha), "weight_decay": 0.0}),
    ):
        parameter = nn.Parameter(start.clone())
        optimizer = kind([parameter], lr=0.5, eps=1e-12, **options)  # type: ignore[operator]
        moved[kind.__name__] = []
        for gradient in gradients:
            before, parameter.grad = parameter.detach().clone(), gradient
            optimizer.step()
            moved[kind.__name__].append(parameter.detach() - before)
    for step, (one, other) in enumerate(zip(moved["RMSprop"], moved["AdamW"], strict=True), 1):
        torch.testing.assert_close(one * (1 - alpha**step) ** 0.5, other, rtol=1e-4, atol=1e-6)
