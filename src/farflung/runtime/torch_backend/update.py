"""What a declared optimizer does to parameters, by the functions that torch's own optimizers call.

Its classes import torch's compiler as soon as one is made: seconds, and memory, that no worker has a use for.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from farflung.runtime.optimizer import SGD, AdamW, Optimizer, learning_rate


class Update:
    """A declared optimizer with its moments of `parameters`: the bits are those of torch's own."""

    def __init__(self, optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._rule = _AdamW(optimizer) if isinstance(optimizer, AdamW) else _SGD(optimizer)

    def step(self, step: int) -> None:
        """Update those that have a gradient, at the rate of step `step`, counted from 0."""
        pairs = ((n, p, p.grad) for n, p in enumerate(self._parameters))
        given = {number: (p, gradient) for number, p, gradient in pairs if gradient is not None}
        if given:
            with torch.no_grad():
                self._rule.step(given, learning_rate(self._optimizer, step))


Given = dict[int, tuple[Tensor, Tensor]]
"""Parameters with their gradients, by the number of the parameter."""


class _AdamW:
    def __init__(self, declared: AdamW) -> None:
        self._declared = declared
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def step(self, given: Given, rate: float) -> None:
        for number, (parameter, _) in given.items():
            if number not in self._kept:
                first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self._kept[number] = first, second, torch.zeros(())
        kept = [self._kept[number] for number in given]
        adam(
            [parameter for parameter, _ in given.values()],
            [gradient for _, gradient in given.values()],
            [first for first, _, _ in kept],
            [second for _, second, _ in kept],
            [],
            [steps for _, _, steps in kept],
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
        self._kept: dict[int, Tensor | None] = {}

    def step(self, given: Given, rate: float) -> None:
        buffers = [self._kept.get(number) for number in given]
        sgd(
            [parameter for parameter, _ in given.values()],
            [gradient for _, gradient in given.values()],
            buffers,
            weight_decay=self._declared.weight_decay,
            momentum=self._declared.momentum,
            lr=rate,
            dampening=self._declared.dampening,
            nesterov=self._declared.nesterov,
            maximize=False,
        )
        self._kept.update(zip(given, buffers, strict=True))
