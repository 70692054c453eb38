"""Time single operations on this device: medians of repeated runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from farflung.opdag.graph import DTypeName, Graph
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.optimizers.slots import update_rule_of
from farflung.runtime.torch_backend.optimizers.update import Update, square_sums
from farflung.runtime.torch_backend.tensors import DTYPES
from farflung.workload.profile import OpTime, UpdateTime, sum_parts, update_signature

LEAST_RUNS, MOST_RUNS = 5, 50
SECONDS = 0.05
"""An operation is repeated for this long, within the limits above."""
MOST_ELEMENTS = 2**24
"""Larger updates take time in proportion, because all of their data comes from memory."""
FAR_BYTES = 64 * 2**20
"""More than a core's share of any cache: data last used this many bytes ago is no longer in it."""
MOST_ALIKE, ALIKE_BYTES = 64, FAR_BYTES // 4
"""Parameters of one size are updated together to time one; gradients and moments need further bytes."""


_BLOCK = 2**16


def clock() -> float:
    """Seconds of this thread if it does all the work, so that other load on the machine counts little."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def autograd_seconds() -> float:
    """Seconds to start autograd, without the time of any node."""
    leaf = torch.zeros(1, requires_grad=True)
    one = torch.ones(1)
    seconds = []
    for _ in range(MOST_RUNS):
        result = leaf.view_as(leaf)
        begin = clock()
        torch.autograd.grad([result], [leaf], [one])
        seconds.append(clock() - begin)
    return sorted(seconds)[len(seconds) // 2]


def sum_time(kind: str) -> OpTime:
    """The time of adding a second gradient of a value to the first, which was made some time ago."""
    dtype, elements = sum_parts(kind)
    first, second = (torch.zeros(elements, dtype=DTYPES[dtype]) for _ in range(2))
    return OpTime(kind, 0.0, _median(lambda: first.add_(second)), 0.0)


def update_times(graph: Graph, optimizer: Optimizer, known: Mapping[str, UpdateTime]) -> list[UpdateTime]:
    """Seconds of an update of each kind of trained parameter, with the norm of its gradient."""
    kinds: dict[str, _Kind] = {}
    for entry in graph.inputs_of("parameter"):
        kind = graph.values[entry.value]
        if entry.trainable:
            rule = update_rule_of(optimizer, entry.name, kind.shape_at(1))
            made = _Kind(entry.name, kind.dtype, kind.shape_at(1))
            kinds[update_signature(rule, kind.dtype, made.elements)] = made
    base = _step_seconds(optimizer) if kinds.keys() - known.keys() else (0.0, 0.0)
    held = sum(graph.values[e.value].bytes(1) for e in graph.inputs_of("parameter") if e.trainable)
    return [
        known.get(signature) or UpdateTime(signature, _update_seconds(optimizer, kind, held, *base))
        for signature, kind in kinds.items()
    ]


def _step_seconds(optimizer: Optimizer) -> tuple[float, float]:
    """The fixed cost of an optimizer's step, and the least cost for each parameter."""
    one, nine = (_stepping(optimizer, "", [torch.zeros(1) for _ in range(count)]) for count in (1, 9))
    each = max(0.0, nine - one) / 8
    return max(0.0, one - each), each


class _Kind(NamedTuple):
    """One of the parameters whose updates take equally long."""

    name: str
    dtype: DTypeName
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def sample(self) -> Tensor:
        """Zeros of its shape, with fewer rows if it is too large."""
        shape = self.shape
        if self.elements > MOST_ELEMENTS:
            shape = (max(1, shape[0] * MOST_ELEMENTS // self.elements), *shape[1:])
        return torch.zeros(shape, dtype=DTYPES[self.dtype])


def _update_seconds(optimizer: Optimizer, kind: _Kind, held: int, once: float, least: float) -> float:
    """The time of updating one among parameters that together take `held` bytes and share the caches."""
    one = kind.sample()
    count = min(MOST_ALIKE, max(1, min(held, ALIKE_BYTES) // max(one.nbytes, 1)))
    seconds = _stepping(optimizer, kind.name, [one.clone() for _ in range(count)]) - once
    return max(least, seconds / count) * kind.elements / max(one.numel(), 1)


def _stepping(optimizer: Optimizer, name: str, tensors: list[Tensor]) -> float:
    parameters = [torch.nn.Parameter(tensor) for tensor in tensors]
    for parameter in parameters:
        parameter.grad = random_like(parameter)  # updates of zeros take twice as long
    update = Update(optimizer, parameters, [name] * len(parameters))

    def step() -> None:
        square_sums(parameter.grad for parameter in parameters if parameter.grad is not None)
        update.step(0)

    return _median(step)


def random_like(tensor: Tensor) -> Tensor:
    """Random numbers as a tensor of the same shape and layout."""
    made = torch.empty_like(tensor)
    fill(made.detach())
    return made


def fill(made: Tensor) -> None:
    """Fill with copies of one random block: drawing every number takes longer than what is measured."""
    generator = torch.Generator().manual_seed(0)
    block = torch.empty(min(made.numel(), _BLOCK), dtype=made.dtype).normal_(std=0.1, generator=generator)
    flat = made.as_strided((made.numel(),), (1,)) if made.numel() else made
    for part in flat.split(_BLOCK):
        part.copy_(block[: len(part)])


def _median(run: Callable[[], object]) -> float:
    run()
    seconds: list[float] = []
    until = clock() + SECONDS
    while len(seconds) < LEAST_RUNS or (len(seconds) < MOST_RUNS and clock() < until):
        begin = clock()
        run()
        seconds.append(clock() - begin)
    return sorted(seconds)[len(seconds) // 2]
