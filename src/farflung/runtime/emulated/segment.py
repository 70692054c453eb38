"""One segment on an emulated device: the messages of a real one, the time of a real one, no numbers."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from farflung.opdag.cost import flops
from farflung.opdag.segment import Segment
from farflung.runtime.emulated.device import EmulatedDevice
from farflung.schedule import Unit

INPUT_FACTOR, WEIGHT_FACTOR = 1, 1  # gradients of either cost about as much as a forward pass (opdag.cost)


class Payload(NamedTuple):
    """Stands for an array of `size` bytes."""

    size: int

    def __add__(self, other: Any, /) -> Payload:
        """A sum is as large as what was added."""
        return self


class EmulatedSegment:
    """See `runtime.backend.SegmentRunner`.

    A forward pass takes as long as its operations take on the device, the gradients of what was received as
    long again, those of parameters too. A segment that received none has all of it to do when it accumulates.
    With `recompute` each microbatch takes one forward pass more. Optimizer steps, and the time that memory
    takes, are left out.
    """

    def __init__(self, segment: Segment, batch: int, device: EmulatedDevice, recompute: bool = False) -> None:
        self.segment = segment
        self._device = device
        self._flops = sum(flops(node, segment.values, batch) for node in segment.nodes)
        crossing = [*segment.sends, *segment.receives]
        self._payloads = {value: Payload(segment.values[value].bytes(batch)) for value in crossing}
        differentiable = set(segment.differentiable)
        self._answered = [value for value in segment.receives if value in differentiable]
        again = (INPUT_FACTOR + recompute) * self._flops
        self._backward_flops = again if self._answered else 0
        self._accumulate_flops = WEIGHT_FACTOR * self._flops + (0 if self._answered else again)

    def compile(self) -> None:
        """There is nothing to compile."""

    def close(self) -> None:
        """Nothing runs beside."""

    def forward(self, unit: Unit, microbatch: int, values: Mapping[int, Payload]) -> dict[int, Payload]:
        self._device.work(self._flops)
        return {value: self._payloads[value] for value in self.segment.sends}

    def backward(
        self,
        unit: Unit,
        microbatch: int,
        gradients: Mapping[int, Payload],
        send: Callable[[int, Payload], None],
    ) -> None:
        self._device.work(self._backward_flops)
        for value in self._answered:
            send(value, self._payloads[value])

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        self._device.work(self._accumulate_flops)

    def share_gradients(self, owners: Mapping[str, EmulatedSegment]) -> None:
        """There are none."""

    def square_sum(self) -> float:
        return 0.0

    def take_loss(self) -> float:
        return 0.0

    def apply(self, step: int, scale: float) -> None:
        """Nothing to update."""

    def drop(self) -> None:
        """Nothing is kept."""

    def snapshot(self, names: Container[str]) -> dict[str, memoryview]:
        return {}
