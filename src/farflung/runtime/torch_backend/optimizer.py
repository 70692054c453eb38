"""Apply declared optimizers to parameters, with the functions that torch's own optimizers call.

Torch's optimizer classes import its compiler when one is created, which costs seconds and memory for nothing.
Large parameters are updated piece by piece, so that the functions' two temporary tensors stay in the cache.
Elements are independent, so the bits are equal. `torch.optim` optimizers built from the same declarations
serve as the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from farflung.runtime.optimizer import (
    SGD,
    STEP,
    AdamW,
    Optimizer,
    Slots,
    learning_rate,
    step_count,
    step_slot,
)
from farflung.runtime.torch_backend.device import read, widest
from farflung.runtime.torch_backend.fused import Due, update
from farflung.runtime.torch_backend.tensors import like, sendable
from farflung.workload.footprint import UPDATED_AT_ONCE


class Update:
    """A declared optimizer with its slots of `parameters`, which are all on one device.

    On a CPU its results are bit-equal to those of torch's own.
    """

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._rule = _AdamW(optimizer) if isinstance(optimizer, AdamW) else _SGD(optimizer)
        self._kept = [_Kept() for _ in self._parameters]

    def step(self, step: int) -> None:
        """Update the parameters that have a gradient, at the rate of step `step`, counted from 0."""
        with torch.no_grad():
            rate = learning_rate(self._optimizer, step)
            pairs = zip(self._parameters, self._kept, strict=True)
            due = [(parameter, kept) for parameter, kept in pairs if parameter.grad is not None]
            if due and due[0][0].device.type != "cpu":
                update(self._optimizer, [_due(parameter, kept) for parameter, kept in due], rate)
            else:
                for parameter, kept in due:
                    assert parameter.grad is not None
                    self._rule.step(parameter, parameter.grad, kept, rate)
            for _, kept in due:
                kept.updates += 1

    def slots(self, number: int, live: bool = False) -> dict[str, memoryview]:
        """The slots of the `number`th parameter, copied unless `live`; none if it was never updated."""
        kept = self._kept[number]
        if not kept.updates:
            return {}
        return {
            slot: step_slot(kept.updates) if slot == STEP else sendable(kept.slots[slot], live)
            for slot in self._optimizer.slots
        }

    def restore(self, slots: Sequence[Slots]) -> None:
        """Go on from these slots, one set a parameter, in the memory that they came in.

        Slots of a parameter that is not contiguous are copied into its own layout.
        """
        pairs = zip(self._parameters, slots, strict=True)
        self._kept = [_restored(parameter, of_one) for parameter, of_one in pairs]


@dataclass
class _Kept:
    """The updates of a parameter so far, and its other slots, laid out as it is.

    SGD does not say how many updates there were: after `restore`, 1 stands for any number.
    """

    updates: int = 0
    slots: dict[str, Tensor] = field(default_factory=dict)


def _due(parameter: Tensor, kept: _Kept) -> Due:
    assert parameter.grad is not None
    return Due(parameter, parameter.grad, kept.slots, kept.updates)


def _restored(parameter: Tensor, slots: Slots) -> _Kept:
    if not slots:
        return _Kept()
    made = {slot: like(buffer, parameter) for slot, buffer in slots.items() if slot != STEP}
    if not parameter.is_contiguous():
        made = {slot: torch.empty_like(parameter.detach()).copy_(tensor) for slot, tensor in made.items()}
    return _Kept(step_count(slots) if STEP in slots else 1, made)


def square_sums(gradients: Iterable[Tensor]) -> list[float]:
    """Each tensor's sum of squares in float64, added in row-major order however the tensor lies in memory."""
    return read([square_sum(gradient) for gradient in gradients])


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


def _pieces(parameter: Tensor, gradient: Tensor, *slots: Tensor) -> Iterator[list[list[Tensor]]]:
    """A parameter's pieces, and those of its gradient and slots: as many at a time as need no memory.

    A parameter that is not contiguous is one piece.
    """
    tensors = (parameter, gradient, *slots)
    if not parameter.is_contiguous():
        yield [[tensor] for tensor in tensors]
    elif gradient.is_contiguous():
        yield [list(parts(tensor)) for tensor in tensors]
    else:  # the gradient's pieces are copies: one at a time
        for pieces in zip(*map(parts, tensors), strict=True):
            yield [[piece] for piece in pieces]


class _AdamW:
    def __init__(self, declared: AdamW) -> None:
        self._declared = declared

    def step(self, parameter: Tensor, gradient: Tensor, kept: _Kept, rate: float) -> None:
        if not kept.updates:
            kept.slots = {slot: torch.zeros_like(parameter) for slot in ("exp_avg", "exp_avg_sq")}
        slots = kept.slots["exp_avg"], kept.slots["exp_avg_sq"]
        for parameters, gradients, means, squares in _pieces(parameter, gradient, *slots):
            adam(
                parameters,
                gradients,
                means,
                squares,
                [],
                [torch.scalar_tensor(kept.updates, dtype=torch.float32) for _ in parameters],
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

    def step(self, parameter: Tensor, gradient: Tensor, kept: _Kept, rate: float) -> None:
        if self._declared.momentum and not kept.updates:
            self._begin(parameter, gradient, kept, rate)
            return
        for parameters, gradients, *buffers in _pieces(parameter, gradient, *kept.slots.values()):
            self._call(parameters, gradients, [*buffers[0]] if buffers else [None] * len(gradients), rate)

    def _begin(self, parameter: Tensor, gradient: Tensor, kept: _Kept, rate: float) -> None:
        """The first update, which makes the buffer."""
        whole = torch.empty_like(parameter)
        for pieces in _pieces(parameter, gradient, whole):
            for one, its_gradient, part in zip(*pieces, strict=True):
                made: list[Tensor | None] = [None]
                self._call([one], [its_gradient], made, rate)
                assert made[0] is not None
                part.copy_(made[0])
        kept.slots = {"momentum_buffer": whole}

    def _call(
        self, parameters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor | None], rate: float
    ) -> None:
        sgd(
            parameters,
            gradients,
            buffers,
            weight_decay=self._declared.weight_decay,
            momentum=self._declared.momentum,
            lr=rate,
            dampening=self._declared.dampening,
            nesterov=self._declared.nesterov,
            maximize=False,
        )


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
