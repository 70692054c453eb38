"""An architecture by name, and a small model of it with what it is fed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
SAMPLES = 4
"""Samples of a microbatch: BatchNorm over fewer numbers multiplies rounding errors."""


@dataclass(frozen=True)
class Case:
    """One architecture: `library`, `task` (a kind of model of that library) and the architecture's name."""

    library: str
    task: str
    name: str
    family: str

    @property
    def key(self) -> str:
        """The name in results and for `--only`."""
        return f"{self.library}/{self.task}/{self.name}"


@dataclass(frozen=True)
class Subject:
    """A small model; `batch(samples)` makes its inputs. `loss` is the job's, None if it returns its own."""

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Tensor] | None
    made: str


class Unbuildable(Exception):
    """The library builds no model of this architecture by the stated rule, or it does not run."""


class Items:
    """A data set whose items are the samples of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return min(len(tensor) for tensor in self._batch.values())

    def __getitem__(self, index: int) -> Batch:
        return {name: tensor[index] for name, tensor in self._batch.items()}


def tensors_in(value: Any) -> list[Tensor]:
    """The floating-point tensors of what a model returns, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def square_of_first(outputs: Any, batch: Batch) -> Tensor:
    """The mean square of a model's first result, for a model without a loss of its own."""
    return tensors_in(outputs)[0].float().square().mean()


def runs(model: nn.Module, loss: Callable[[Any, Batch], Tensor] | None, batch: Batch) -> None:
    """One forward and backward pass in train mode; raises what the model raises."""
    model.train()
    takes = inspect.signature(model.forward).parameters
    every = loss is None or any(entry.kind is entry.VAR_KEYWORD for entry in takes.values())
    outputs = model(**{name: value for name, value in batch.items() if every or name in takes})
    made = loss(outputs, batch) if loss is not None else outputs["loss"]
    if made is None or not bool(torch.isfinite(made.detach())):
        raise Unbuildable("the model's loss is missing or not finite on random inputs")
    made.backward()
    model.zero_grad(set_to_none=True)
