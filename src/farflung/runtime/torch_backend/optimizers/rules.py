"""The update of one parameter by each optimizer, with the functions that torch's own optimizers call.

Rules whose elements are independent work piece by piece, so that the functions' two temporary tensors stay in
the cache; Adafactor and Muon need the whole parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim._adafactor import adafactor
from torch.optim._muon import muon
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Lion, Muon, Recipe
from farflung.runtime.optimizers.slots import STEP, slots_of
from farflung.workload.footprint import UPDATED_AT_ONCE


@dataclass
class Kept:
    """The updates of a parameter so far, and its other slots; one of its shape is laid out as it is.

    Not all rules need the number of updates: after `Update.restore`, 1 may stand for any. `average` is the
    parameter's moving average, if it has one; `anchor` and `outer_momentum` are those of DiLoCo.
    """

    updates: int = 0
    slots: dict[str, Tensor] = field(default_factory=dict)
    average: Tensor | None = None
    anchor: Tensor | None = None
    outer_momentum: Tensor | None = None


Step = Callable[[Tensor, Tensor, Kept, float], None]
"""Update a parameter in place, with its gradient, what is kept of it, and the learning rate."""


def step_of(recipe: Recipe) -> Step:
    """The update by a recipe's rule; it makes slots at the first one, and does not count."""
    declared = recipe.declared
    if isinstance(declared, AdamW):
        return _AdamW(declared, recipe.weight_decay)
    if isinstance(declared, SGD):
        return _SGD(declared, recipe.weight_decay)
    if isinstance(declared, Lion):
        return _Lion(declared, recipe.weight_decay)
    if isinstance(declared, Adafactor):
        return _Adafactor(declared, recipe.weight_decay)
    return _Muon(declared, recipe.weight_decay)


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
    def __init__(self, declared: AdamW, weight_decay: float) -> None:
        self._declared = declared
        self._weight_decay = weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
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
                weight_decay=self._weight_decay,
                eps=self._declared.eps,
                maximize=False,
            )


class _SGD:
    def __init__(self, declared: SGD, weight_decay: float) -> None:
        self._declared = declared
        self._weight_decay = weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
        if self._declared.momentum and not kept.updates:
            self._begin(parameter, gradient, kept, rate)
            return
        for parameters, gradients, *buffers in _pieces(parameter, gradient, *kept.slots.values()):
            self._call(parameters, gradients, [*buffers[0]] if buffers else [None] * len(gradients), rate)

    def _begin(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
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
            weight_decay=self._weight_decay,
            momentum=self._declared.momentum,
            lr=rate,
            dampening=self._declared.dampening,
            nesterov=self._declared.nesterov,
            maximize=False,
        )


class _Lion:
    def __init__(self, declared: Lion, weight_decay: float) -> None:
        self._betas = declared.betas
        self._weight_decay = weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
        if not kept.updates:
            kept.slots = {"exp_avg": torch.zeros_like(parameter)}
        first, second = self._betas
        for pieces in _pieces(parameter, gradient, kept.slots["exp_avg"]):
            for one, its_gradient, mean in zip(*pieces, strict=True):
                one.mul_(1 - rate * self._weight_decay)
                direction = mean * first + its_gradient * (1 - first)
                one.add_(direction.sign_(), alpha=-rate)
                mean.mul_(second).add_(its_gradient, alpha=1 - second)


class _Adafactor:
    def __init__(self, declared: Adafactor, weight_decay: float) -> None:
        self._declared = declared
        self._weight_decay = weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
        if not kept.updates:
            kept.slots = _zeros(self._declared, parameter)
        if not parameter.numel():  # torch divides by its size
            return
        if parameter.device.type != "cpu":
            self._there(parameter, gradient, kept, rate)
            return
        slots = kept.slots
        adafactor(
            [parameter],
            [gradient],
            [slots.get("row_var")],
            [slots.get("col_var")],
            [slots.get("variance")],
            [torch.scalar_tensor(kept.updates, dtype=torch.float32)],
            foreach=False,
            d=self._declared.d,
            lr=rate,
            beta2_decay=self._declared.beta2_decay,
            weight_decay=self._weight_decay,
            eps1=self._declared.eps[0],  # type: ignore[arg-type]  # torch's own class gives None, too
            eps2=self._declared.eps[1],
            maximize=False,
        )

    def _there(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
        """The same on a device: torch's function reads two norms of each parameter, and waits for them."""
        declared, slots, count = self._declared, kept.slots, kept.updates + 1
        least, least_norm = declared.eps
        least = torch.finfo(parameter.dtype).eps if least is None else least
        share, size = float(count) ** declared.beta2_decay, parameter.numel() ** 0.5
        step = (parameter.norm(2) / size).clamp_(min=least_norm) * min(rate, 1 / count**0.5)
        parameter.mul_(1 - rate * self._weight_decay)
        if parameter.dim() > 1:
            for slot, dim in (("row_var", -1), ("col_var", -2)):
                mean = (
                    torch.linalg.vector_norm(gradient, dim=dim, keepdim=True)
                    .square_()
                    .div_(gradient.size(dim))
                )
                slots[slot].lerp_(mean, share)
            estimate = slots["row_var"] @ slots["col_var"]
            estimate.div_(slots["row_var"].mean(dim=-2, keepdim=True).clamp_(min=least))
        else:
            estimate = slots["variance"].lerp_(gradient * gradient, share).clone()
        update = estimate.clamp_(min=least * least).rsqrt_().mul_(gradient)
        divisor = (update.norm(2) / (size * declared.d)).clamp_(min=1.0)
        parameter.sub_(update.mul_(step / divisor))


class _Muon:
    def __init__(self, declared: Muon, weight_decay: float) -> None:
        self._declared = declared
        self._weight_decay = weight_decay

    def __call__(self, parameter: Tensor, gradient: Tensor, kept: Kept, rate: float) -> None:
        if not kept.updates:
            kept.slots = {"momentum_buffer": torch.zeros_like(parameter)}
        if not parameter.numel():
            return  # torch's ratio of the sides would divide by zero
        muon(
            [parameter],
            [gradient],
            [kept.slots["momentum_buffer"]],
            lr=rate,
            weight_decay=self._weight_decay,
            momentum=self._declared.momentum,
            nesterov=self._declared.nesterov,
            ns_coefficients=self._declared.ns_coefficients,
            ns_steps=self._declared.ns_steps,
            eps=self._declared.eps,
            adjust_lr_fn=self._declared.adjust_lr_fn,
            has_complex=False,
        )


def _zeros(declared: Adafactor, parameter: Tensor) -> dict[str, Tensor]:
    shapes = slots_of(declared, parameter.shape)
    return {
        slot: torch.zeros_like(parameter) if shape == parameter.shape else parameter.new_zeros(shape)
        for slot, shape in shapes.items()
        if slot != STEP
    }
