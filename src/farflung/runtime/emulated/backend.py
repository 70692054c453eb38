"""An emulated device as a backend of a worker: it takes the time of a real device, and sends random bytes.

How long an emulated device takes for so many floating point operations.

One segment on an emulated device: the messages of a real one, the time of a real one, no numbers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from farflung.opdag.buckets import in_buckets
from farflung.opdag.cost import flops
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import EMULATED, Offer
from farflung.runtime.state import Snapshot, StateKey
from farflung.runtime.task_timer import HostTimer
from farflung.runtime.training import Training
from farflung.schedule import Unit

if TYPE_CHECKING:
    from farflung.runtime.emulated.coding import EmulatedCoding


class EmulatedDevice:
    """Sleeps flops / (tflops x 10^12) seconds for work of `flops` operations.

    `tflops` is the sustained rate, so it already contains an efficiency below the peak and the scale of an
    emulation. If a sleep ends late, the next ones are shorter, so that the total time of many tasks is exact.
    """

    def __init__(
        self,
        tflops: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.tflops = tflops
        self._clock = clock
        self._sleep = sleep
        self._late_seconds = 0.0

    def seconds(self, flops: float) -> float:
        """The duration of `flops` operations."""
        return flops / (self.tflops * 1e12)

    def work(self, flops: float) -> None:
        """Sleep until `flops` operations would be done."""
        self.wait(self.seconds(flops))

    def wait(self, seconds: float) -> None:
        """Sleep until this much time has passed since the last work was done."""
        due = self._clock() + seconds - self._late_seconds
        pause = due - self._clock()
        if pause > 0:
            self._sleep(pause)
        self._late_seconds = max(0.0, self._clock() - due)


INPUT_FACTOR, WEIGHT_FACTOR = 1, 1  # gradients of either cost about as much as a forward pass (opdag.cost)


class Payload(NamedTuple):
    """Stands for an array of `size` bytes."""

    size: int

    def __add__(self, other: Any, /) -> Payload:
        """The sum, which has the same size."""
        return self


class EmulatedSegment:
    """See `runtime.backend.SegmentRunner`.

    A forward pass takes the time of its operations on the device, and the gradients of received values and of
    parameters take the same time each. A segment without received gradients does all of it in `accumulate`.
    With `recompute` each microbatch takes one more forward pass. Optimizer steps and memory accesses take no
    time.
    """

    def __init__(self, segment: Segment, batch: int, device: EmulatedDevice, recompute: bool = False) -> None:
        self.segment = segment
        self._device = device
        sized = in_buckets(segment)
        self._flops = [sum(flops(node, one.values, batch) for node in one.nodes) for one in sized]
        crossing = [*segment.sends, *segment.receives]
        self._payloads = [{v: Payload(one.values[v].bytes(batch)) for v in crossing} for one in sized]
        self._buckets: dict[int, int] = {}
        trained = [e.value for e in segment.inputs if e.trainable and e.name in segment.owned]
        self._gradients = {value: Payload(segment.values[value].bytes(batch)) for value in trained}
        differentiable = set(segment.differentiable)
        self._answered = [value for value in segment.receives if value in differentiable]
        again = INPUT_FACTOR + recompute
        self._backward_factor = again if self._answered else 0
        self._accumulate_factor = WEIGHT_FACTOR + (0 if self._answered else again)

    def compile(self) -> None:
        """Do nothing: there is nothing to compile."""

    def close(self) -> None:
        """Do nothing: there is no background work."""

    def forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, Payload], bucket: int = 0
    ) -> dict[int, Payload]:
        if unit.train:
            self._buckets[microbatch] = bucket
        self._device.work(self._flops[bucket])
        return {value: self._payloads[bucket][value] for value in self.segment.sends}

    def backward(
        self,
        unit: Unit,
        microbatch: int,
        gradients: Mapping[int, Payload],
        send: Callable[[int, Payload], None],
    ) -> None:
        bucket = self._buckets[microbatch]
        self._device.work(self._backward_factor * self._flops[bucket])
        for value in self._answered:
            send(value, self._payloads[bucket][value])

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        self._device.work(self._accumulate_factor * self._flops[self._buckets.pop(microbatch)])

    def share_gradients(self, owners: Mapping[str, EmulatedSegment]) -> None:
        """Do nothing: there are no gradients."""

    def parameter_gradients(self) -> dict[int, Payload]:
        """Bytes as large as each gradient."""
        return self._gradients

    def set_parameter_gradient(self, value: int, gradient: Payload | None) -> None:
        """Do nothing: there are no gradients."""

    def square_sums(self) -> dict[int, float]:
        return {}

    def bit_sums(self) -> dict[int, int]:
        return {}

    def take_loss(self) -> float:
        return 0.0

    def take_metrics(self) -> dict[int, float]:
        return {}

    def apply(self, step: int, scale: float) -> None:
        """Do nothing: there is no state."""

    def outer_gradients(self, weight: float) -> dict[int, Payload]:
        """Bytes as large as each gradient."""
        return self._gradients

    def trained_parameters(self) -> dict[int, Payload]:
        """Bytes as large as each parameter."""
        return self._gradients

    def merge(self, takes_over: bool) -> None:
        """Do nothing: there is no state."""

    def drop(self) -> None:
        self._buckets.clear()

    def snapshot(self, names: Container[str], slots: bool = False, live: bool = False) -> Snapshot:
        return {}

    def restore(self, state: Mapping[StateKey, memoryview]) -> None:
        """Do nothing: there is no state."""


class EmulatedBackend:
    """See `runtime.backend.Backend`; arrays are `Payload`s.

    Received bytes go into one shared buffer, sent ones come from another, of random bytes that cannot be
    compressed. So it needs little memory, whatever the plan's memory estimates say.
    """

    overlaps = False

    def __init__(self, tflops: float) -> None:
        self._device = EmulatedDevice(tflops)
        self._received = memoryview(b"")
        self._noise = memoryview(b"")

    def offer(self) -> Offer:
        return Offer(EMULATED, f"emulated, {self._device.tflops:g} TFLOP/s", 1, EMULATED)

    def measure_tflops(self) -> float:
        return self._device.tflops

    def measure_rates(self) -> None:
        """None: a device that sleeps is as fast in every precision."""

    def timer(self) -> HostTimer:
        return HostTimer()

    def kernel_digest(self) -> str:
        return EMULATED

    def allocate(self, size: int) -> memoryview:
        received = self._received
        if size > len(received):
            self._received = received = memoryview(bytearray(size))
        return received[:size]

    def array(self, buffer: memoryview, form: Form) -> Payload:
        return Payload(len(buffer))

    enter = array

    def memory(self, array: Payload) -> memoryview:
        if array.size > len(self._noise):
            self._noise = memoryview(os.urandom(array.size))
        return self._noise[: array.size]

    leave = memory

    def warm_up(self) -> None:
        """Do nothing: programs do not run."""

    def failure(self, error: Exception) -> None:
        """None: there is no device."""

    def release(self) -> None:
        """Do nothing: there are no arrays."""

    def verify(self, segment: Segment, batch: int) -> None:
        """Do nothing: the program will not run."""

    def runner(
        self, segment: Segment, state: Mapping[str, Payload], training: Training, recompute: bool = False
    ) -> EmulatedSegment:
        return EmulatedSegment(segment, training.microbatch_size, self._device, recompute)

    def coding(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment], first: int = 0
    ) -> EmulatedCoding:
        from farflung.runtime.emulated.coding import EmulatedCoding  # imports numpy, through the codecs

        device = EmulatedDevice(self._device.tflops)
        return EmulatedCoding(worker, plan, training, segments, device, first)
