"""Apply declared optimizers to parameters, with the functions that torch's own optimizers call.

Torch's optimizer classes import its compiler when one is created, which costs seconds and memory for nothing.
Large parameters are updated piece by piece, so that the functions' two temporary tensors stay in the cache.
Elements are independent, so the bits are equal. `runtime.parity.optimizers` builds the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer, Recipe, recipe_of
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.runtime.optimizers.slots import (
    ANCHOR,
    EMA,
    OUTER_MOMENTUM,
    STEP,
    Slots,
    kept_of,
    slots_of,
    step_count,
    step_slot,
)
from farflung.runtime.torch_backend.device import read, widest
from farflung.runtime.torch_backend.optimizers.fused import Due, update
from farflung.runtime.torch_backend.optimizers.rules import Kept, parts, step_of
from farflung.runtime.torch_backend.tensors import sendable, shaped

if TYPE_CHECKING:
    import numpy as np


class Update:
    """A declared optimizer with its slots of `parameters`, which are all on one device.

    `names` are the parameters', by which the declaration may give them numbers of their own. On a CPU the
    results are bit-equal to those of torch's own optimizers.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Iterable[Tensor], names: Sequence[str] | None = None
    ) -> None:
        self._parameters = list(parameters)
        named = zip(names or [""] * len(self._parameters), self._parameters, strict=True)
        self._recipes = [recipe_of(optimizer, name, parameter.shape) for name, parameter in named]
        self._kept = [Kept() for _ in self._parameters]

    def step(self, step: int) -> None:
        """Update the parameters that have a gradient, at the rate of step `step`, counted from 0."""
        self._hold_anchors()
        groups: dict[Recipe, list[tuple[Tensor, Kept]]] = {}
        for recipe, parameter, kept in zip(self._recipes, self._parameters, self._kept, strict=True):
            if parameter.grad is not None:
                groups.setdefault(recipe, []).append((parameter, kept))
        with torch.no_grad():
            for recipe, due in groups.items():
                self._update(recipe, due, recipe.rate(step))
            self._average()

    def outer_gradients(self, weight: float) -> list[Tensor | None]:
        """How far each parameter has come since its anchor, times -`weight`; None before any step."""
        with torch.no_grad():
            return [
                None if kept.anchor is None else (kept.anchor - parameter).mul_(weight)
                for parameter, kept in zip(self._parameters, self._kept, strict=True)
            ]

    def merge(self) -> None:
        """Take DiLoCo's outer step from the anchors, with the gradients as outer gradients.

        The bits are those of `torch.optim.SGD` with Nesterov's momentum.
        """
        self._hold_anchors()
        for declared, parameter, gradient, kept in self._anchored():
            assert kept.anchor is not None and kept.outer_momentum is not None
            momentum = kept.outer_momentum.mul_(declared.outer.momentum).add_(gradient)
            step = gradient.add(momentum, alpha=declared.outer.momentum)
            parameter.copy_(kept.anchor.add_(step, alpha=-declared.outer.lr))

    def take_over(self) -> None:
        """Take the gradients, which are another pipeline's parameters, as parameters and anchors."""
        self._hold_anchors()
        for _, parameter, gradient, kept in self._anchored():
            assert kept.anchor is not None
            parameter.copy_(kept.anchor.copy_(gradient))

    def _anchored(self) -> Iterator[tuple[DiLoCo, Tensor, Tensor, Kept]]:
        """The parameters that have a gradient, with it and what is kept of them."""
        with torch.no_grad():
            for recipe, parameter, kept in zip(self._recipes, self._parameters, self._kept, strict=True):
                if parameter.grad is not None and recipe.declared.diloco is not None:
                    yield recipe.declared.diloco, parameter, parameter.grad, kept

    def _hold_anchors(self) -> None:
        """Before the first step of a job that merges, make anchors, and all slots as zeros."""
        for recipe, parameter, kept in zip(self._recipes, self._parameters, self._kept, strict=True):
            if recipe.declared.diloco is None or kept.anchor is not None:
                continue
            kept.anchor, kept.outer_momentum = parameter.detach().clone(), torch.zeros_like(parameter)
            kept.average = None if recipe.declared.ema is None else kept.anchor.clone()
            kept.slots = {
                slot: torch.zeros_like(parameter) if shape == parameter.shape else parameter.new_zeros(shape)
                for slot, shape in slots_of(recipe.declared, parameter.shape).items()
                if slot != STEP
            }

    def _update(self, recipe: Recipe, due: list[tuple[Tensor, Kept]], rate: float) -> None:
        if due[0][0].device.type != "cpu" and isinstance(recipe.declared, AdamW | SGD):
            update(recipe, [_due(parameter, kept) for parameter, kept in due], rate)
        else:
            rule = step_of(recipe)
            for parameter, kept in due:
                assert parameter.grad is not None
                rule(parameter, parameter.grad, kept, rate)
        for _, kept in due:
            kept.updates += 1

    def _average(self) -> None:
        """Take the parameters into their moving averages, with torch's own function."""
        groups: dict[float, list[tuple[Tensor, Tensor]]] = {}
        for recipe, parameter, kept in zip(self._recipes, self._parameters, self._kept, strict=True):
            if (decay := recipe.declared.ema) is None or not kept.updates:
                continue
            if kept.average is None:
                kept.average = parameter.detach().clone()
            else:
                groups.setdefault(decay, []).append((kept.average, parameter.detach()))
        for decay, pairs in groups.items():
            for kind in {average.dtype for average, _ in pairs}:
                of_kind = [pair for pair in pairs if pair[0].dtype == kind]
                averages, parameters = map(list, zip(*of_kind, strict=True))
                torch._foreach_lerp_(averages, parameters, 1 - decay)

    def slots(self, number: int, live: bool = False) -> dict[str, memoryview]:
        """The slots of the `number`th parameter, copied unless `live`; none if it was never updated."""
        kept = self._kept[number]
        if not kept.updates and kept.anchor is None:
            return {}
        beside = {EMA: kept.average, ANCHOR: kept.anchor, OUTER_MOMENTUM: kept.outer_momentum}
        tensors = {**kept.slots, **{slot: tensor for slot, tensor in beside.items() if tensor is not None}}
        return {
            slot: step_slot(kept.updates) if slot == STEP else sendable(tensors[slot], live)
            for slot in kept_of(self._recipes[number].declared, self._parameters[number].shape)
        }

    def restore(self, slots: Sequence[Slots]) -> None:
        """Go on from these slots, one set a parameter, in the memory that they came in.

        Slots of a parameter that is not contiguous are copied into its own layout.
        """
        given = zip(self._recipes, self._parameters, slots, strict=True)
        self._kept = [_restored(recipe, parameter, of_one) for recipe, parameter, of_one in given]


def _due(parameter: Tensor, kept: Kept) -> Due:
    assert parameter.grad is not None
    return Due(parameter, parameter.grad, kept.slots, kept.updates)


def _restored(recipe: Recipe, parameter: Tensor, slots: Slots) -> Kept:
    if not slots:
        return Kept()
    made = {
        slot: shaped(slots[slot], parameter.dtype, shape).to(parameter.device)
        for slot, shape in kept_of(recipe.declared, parameter.shape).items()
        if slot != STEP
    }
    if not parameter.is_contiguous():
        empty = torch.empty_like(parameter.detach())
        made = {
            slot: empty.clone().copy_(tensor) if tensor.shape == empty.shape else tensor
            for slot, tensor in made.items()
        }
    beside = [made.pop(slot, None) for slot in (EMA, ANCHOR, OUTER_MOMENTUM)]
    return Kept(step_count(slots) if STEP in slots else 1, made, *beside)


def square_sums(gradients: Iterable[Tensor]) -> list[float]:
    """Each tensor's sum of squares in float64, added in row-major order however the tensor lies in memory."""
    return read(squares_of(list(gradients)))


def squares_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The sums of squares, still on the gradients' device, where one kernel makes many."""
    if gradients and gradients[0].device.type == "cuda":
        rows = [gradient.contiguous() for gradient in gradients]
        norms = torch._foreach_norm(rows, 2, dtype=torch.float64)
        return list(torch._foreach_mul(norms, norms))
    return [square_sum(gradient) for gradient in gradients]


def words_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The elements of a tensor on the host as integers of their bits; shares its memory."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(sizes[tensor.element_size()]).numpy()


def square_sum(gradient: Tensor) -> Tensor:
    """The sum of squares, still on the gradient's device.

    On a CPU in pieces, because torch converts a whole tensor at once there.
    """
    wide = widest(gradient.device)
    if gradient.device.type != "cpu":
        return torch.linalg.vector_norm(gradient.reshape(-1), dtype=wide).square()
    total, *others = (
        torch.linalg.vector_norm(piece.reshape(-1), dtype=wide).square() for piece in parts(gradient)
    )
    for square in others:
        total += square
    return total
