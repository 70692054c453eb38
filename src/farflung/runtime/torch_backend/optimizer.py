"""Apply declared optimizers to parameters, with the functions that torch's own optimizers call.

Torch's optimizer classes import its compiler when one is created, which costs seconds and memory for nothing.
Large parameters are updated piece by piece, so that the functions' two temporary tensors stay in the cache.
Elements are independent, so the bits are equal. `torch.optim` optimizers built from the same declarations
serve as the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from farflung.runtime.optimizer import SGD, AdamW, Optimizer, learning_rate
from farflung.workload.footprint import UPDATED_AT_ONCE


class Update:
    """A declared optimizer with its moments of `parameters`; its results are bit-equal to torch's own."""

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._rule = _AdamW(optimizer) if isinstance(optimizer, AdamW) else _SGD(optimizer)

    def step(self, step: int) -> None:
        """Update the parameters that have a gradient, at the rate of step `step`, counted from 0."""
        with torch.no_grad():
            rate = learning_rate(self._optimizer, step)
            for number, parameter in enumerate(self._parameters):
                if parameter.grad is None:
                    continue
                pieces = _pieces(number, parameter, parameter.grad)
                if parameter.grad.is_contiguous():
                    self._rule.step(list(pieces), rate)
                else:  # its pieces are copies: one at a time
                    for one in pieces:
                        self._rule.step([one], rate)


def square_sums(gradients: Iterable[Tensor]) -> list[float]:
    """Each tensor's sum of squares in float64, added in row-major order however the tensor lies in memory."""
    sums = [_square_sum(gradient) for gradient in gradients]
    found: list[float] = torch.stack(sums).tolist() if sums else []  # waits for the device once
    return found


def _square_sum(gradient: Tensor) -> Tensor:
    """In pieces, because torch converts a whole tensor at once."""
    total = torch.zeros((), dtype=torch.float64, device=gradient.device)
    for piece in parts(gradient):
        total += torch.linalg.vector_norm(piece.reshape(-1), dtype=torch.float64).square()
    return total


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor in row-major order, `UPDATED_AT_ONCE` bytes at a time; a small one whole.

    Parts of a contiguous tensor are views, those of others copies, one at a time.
    """
    each = UPDATED_AT_ONCE // tensor.element_size()
    if tensor.nbytes <= UPDATED_AT_ONCE:
        yield tensor
    elif tensor.is_contiguous():
        yield from tensor.detach().reshape(-1).split(each)
    else:
        row = tensor[0].numel()
        for start in range(0, tensor.numel(), each):
            end = min(start + each, tensor.numel())
            first = start // row
            rows = tensor.detach()[first : -(-end // row)]
            yield rows.reshape(-1)[start - first * row : end - first * row]


def _pieces(number: int, parameter: Tensor, gradient: Tensor) -> Iterator[_Piece]:
    """The parameter with its gradient, piece by piece; a parameter that is not contiguous is one piece."""
    if not parameter.is_contiguous():
        yield _Piece((number, 0), parameter, gradient)
        return
    for place, pair in enumerate(zip(parts(parameter), parts(gradient), strict=True)):
        yield _Piece((number, place), *pair)


class _Piece(NamedTuple):
    """A piece of a parameter with its gradient; `place` is the parameter's number and the piece's."""

    place: tuple[int, int]
    parameter: Tensor
    gradient: Tensor


class _AdamW:
    def __init__(self, declared: AdamW) -> None:
        self._declared = declared
        self._state: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def step(self, pieces: list[_Piece], rate: float) -> None:
        for place, parameter, _ in pieces:
            if place not in self._state:
                first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self._state[place] = first, second, torch.zeros(())
        states = [self._state[one.place] for one in pieces]
        adam(
            [one.parameter for one in pieces],
            [one.gradient for one in pieces],
            [first for first, _, _ in states],
            [second for _, second, _ in states],
            [],
            [steps for _, _, steps in states],
            decoupled_weight_decay=True,
            amsgrad=False,
            beta1=self._declared.betas[0],
            beta2=self._declared.betas[1],
            lr=rate,
            weight_decay=self._declared.weight_decay,
            eps=self._declared.eps,
            maximize=False,
        )


class _SGD:
    def __init__(self, declared: SGD) -> None:
        self._declared = declared
        self._state: dict[tuple[int, int], Tensor | None] = {}

    def step(self, pieces: list[_Piece], rate: float) -> None:
        places = [one.place for one in pieces]
        buffers = [self._state.get(place) for place in places]
        sgd(
            [one.parameter for one in pieces],
            [one.gradient for one in pieces],
            buffers,
            weight_decay=self._declared.weight_decay,
            momentum=self._declared.momentum,
            lr=rate,
            dampening=self._declared.dampening,
            nesterov=self._declared.nesterov,
            maximize=False,
        )
        self._state.update(zip(places, buffers, strict=True))


def build(optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Torch's optimizer over `parameters` (at least one), at the rate of step 0."""
    rate = learning_rate(optimizer, 0)
    if isinstance(optimizer, AdamW):
        return torch.optim.AdamW(
            parameters,
            lr=rate,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=rate,
        momentum=optimizer.momentum,
        dampening=optimizer.dampening,
        weight_decay=optimizer.weight_decay,
        nesterov=optimizer.nesterov,
    )


def set_learning_rate(built: torch.optim.Optimizer, optimizer: Optimizer, step: int) -> None:
    """Set the learning rate of step `step`, counted from 0, in an optimizer that `build` returned."""
    for group in built.param_groups:
        group["lr"] = learning_rate(optimizer, step)
