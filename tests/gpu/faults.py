"""Mistakes of a backend that forgets its device, planted to see that the fake accelerator finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from tests.gpu import shapes

from farflung.runtime.torch_backend import backend, codegen, segment
from farflung.runtime.torch_backend.tensors import over

Patch = Any


def creation_without_device() -> Patch:
    return patch.object(codegen, "_names_a_device", lambda op: False)


def state_on_the_host() -> Patch:
    return patch.object(backend.TorchBackend, "array", lambda self, buffer, form: over(buffer, form))


def loss_read_at_once() -> Patch:
    taken = segment.TorchSegment._add_loss

    def add(self: segment.TorchSegment, results: Any, weight: float) -> None:
        taken(self, results, weight)
        self._read([])

    return patch.object(segment.TorchSegment, "_add_loss", add)


def run(fault: Callable[[], Patch], name: str) -> shapes.Counts | str:
    """What a step on shapes with a mistake counts, or the error that ends it."""
    try:
        with fault():
            return shapes.run(name)
    except Exception as error:
        return str(error)
