"""Mistakes in what waits for what, planted to see that the race detector and the numbers show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from tests.gpu import numbers
from torch import Tensor

from farflung.runtime.torch_backend import crossing, pinned
from farflung.runtime.torch_backend.crossing import Arriving, Leaving

Patch = Any


def used_before_it_arrived() -> Patch:
    return patch.object(Arriving, "here", lambda self: self._tensor)


def copied_before_it_was_computed() -> Patch:
    @contextmanager
    def on(self: Leaving, stream: Any) -> Iterator[None]:
        self._tensor.record_stream(stream)
        with self._crossing.on(stream):
            yield

    return patch.object(Leaving, "_on", on)


def pinned_memory_used_again_at_once() -> Patch:
    return patch.object(pinned._Free, "is_ready", True)


def bytes_taken_before_the_copy() -> Patch:
    def taken(self: Leaving, buffer: Tensor) -> Tensor:
        whole = torch.empty(self._tensor.nbytes, dtype=torch.uint8)
        whole.copy_(buffer[: len(whole)])
        return whole

    return patch.object(Leaving, "_taken", taken)


def memory_not_marked() -> Patch:
    def here(self: Arriving) -> Tensor:
        self._crossing.compute.wait_event(self.there)
        return self._tensor

    return patch.object(Arriving, "here", here)


def gradient_sent_before_it_was_computed() -> Patch:
    return patch.object(crossing.Deferred, "note", _note_nothing_queued)


def _note_nothing_queued(self: crossing.Deferred, value: int, gradient: Tensor) -> None:
    self._found.append((value, gradient, self._crossing._module.Event()))


def no_pinned_memory() -> Patch:
    """No mistake: everything crosses through ordinary memory."""
    return patch.object(pinned.PinnedRing, "take", lambda self, size: None)


class Found(NamedTuple):
    """What the detector said, and whether the losses or gradients differ from those of the CPU."""

    races: list[str]
    differs: bool


def run(fault: Callable[[], Patch], name: str, codec: str = "") -> Found:
    """Two steps of a model with a mistake, on two workers."""
    with fault():
        found, races = numbers.detected(name, 2, 2, False, False, numbers.STEADY, codec)
    return Found(races, not (found.loss < 1e-6 and found.gradient < 1e-5))
