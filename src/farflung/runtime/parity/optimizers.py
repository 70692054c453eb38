"""The optimizers of one process that a declaration stands for: torch's own, where torch has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Lion, Optimizer, Recipe, recipe_of

Parameters = Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]]


def build(optimizer: Optimizer, parameters: Parameters) -> torch.optim.Optimizer:
    """The optimizer over `parameters` (at least one) at the rate of step 0.

    They are as in torch: parameters, or pairs with their names, which patterns of the declaration need.
    """
    recipes: dict[Recipe, list[nn.Parameter]] = {}
    for given in parameters:
        name, parameter = given if isinstance(given, tuple) else ("", given)
        recipes.setdefault(recipe_of(optimizer, name, parameter.shape), []).append(parameter)
    groups: dict[Optimizer, list[dict[str, Any]]] = {}
    for recipe, members in recipes.items():
        group = {"weight_decay": recipe.weight_decay, "lr": recipe.rate(0), "recipe": recipe}
        # Torch's Adafactor takes the machine epsilon of a group's first parameter for all of it.
        parts = [[one] for one in members] if isinstance(recipe.declared, Adafactor) else [members]
        made = groups.setdefault(recipe.declared, [])
        made += [{"params": part, **group} for part in parts]
    built = [_built(declared, made) for declared, made in groups.items()]
    return built[0] if len(built) == 1 else _Together(built)


def set_learning_rate(built: torch.optim.Optimizer, step: int) -> None:
    """Set the learning rates of step `step`, counted from 0, in an optimizer that `build` returned."""
    for group in built.param_groups:
        group["lr"] = group["recipe"].rate(step)


def _built(declared: Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    if isinstance(declared, AdamW):
        return torch.optim.AdamW(groups, betas=declared.betas, eps=declared.eps)
    if isinstance(declared, SGD):
        return torch.optim.SGD(
            groups,
            momentum=declared.momentum,
            dampening=declared.dampening,
            nesterov=declared.nesterov,
        )
    if isinstance(declared, Lion):
        return LionReference(groups, declared.betas)
    if isinstance(declared, Adafactor):
        return torch.optim.Adafactor(groups, beta2_decay=declared.beta2_decay, eps=declared.eps, d=declared.d)
    return torch.optim.Muon(
        groups,
        momentum=declared.momentum,
        nesterov=declared.nesterov,
        ns_coefficients=declared.ns_coefficients,
        eps=declared.eps,
        ns_steps=declared.ns_steps,
        adjust_lr_fn=declared.adjust_lr_fn,
    )


class LionReference(torch.optim.Optimizer):
    """Lion, which torch lacks, for whole parameters (arXiv 2302.06675, algorithm 2)."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(groups, {"betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                mean: Tensor = state["exp_avg"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = mean * first + parameter.grad * (1 - first)
                parameter.add_(update.sign_(), alpha=-group["lr"])
                mean.mul_(second).add_(parameter.grad, alpha=1 - second)


class _Together(torch.optim.Optimizer):
    """Several optimizers of different parameters, as one."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        for part in parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for part in self._parts:
            part.step()
