"""An emulated device as a backend of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import EMULATED, Offer
from farflung.runtime.emulated.device import EmulatedDevice
from farflung.runtime.emulated.segment import EmulatedSegment, Payload
from farflung.runtime.training import Training
from farflung.workload.form import Form

if TYPE_CHECKING:
    from farflung.runtime.emulated.coding import EmulatedCoding


class EmulatedBackend:
    """See `runtime.backend.Backend`; arrays are `Payload`s.

    What is received goes into one shared piece of memory, what is sent comes from another, of random bytes
    that no compression shrinks: so a device's memory is not taken, however much of it the plan fills.
    """

    def __init__(self, tflops: float) -> None:
        self._device = EmulatedDevice(tflops)
        self._received = memoryview(b"")
        self._noise = memoryview(b"")

    def offer(self) -> Offer:
        return Offer(EMULATED, f"emulated, {self._device.tflops:g} TFLOP/s", 1, EMULATED)

    def measure_tflops(self) -> float:
        return self._device.tflops

    def allocate(self, size: int) -> memoryview:
        received = self._received
        if size > len(received):
            self._received = received = memoryview(bytearray(size))
        return received[:size]

    def array(self, buffer: memoryview, form: Form) -> Payload:
        return Payload(len(buffer))

    def memory(self, array: Payload) -> memoryview:
        if array.size > len(self._noise):
            self._noise = memoryview(os.urandom(array.size))
        return self._noise[: array.size]

    def verify(self, segment: Segment, batch: int) -> None:
        """Nothing of it will run."""

    def runner(
        self, segment: Segment, state: Mapping[str, Payload], training: Training, recompute: bool = False
    ) -> EmulatedSegment:
        return EmulatedSegment(segment, training.microbatch_size, self._device, recompute)

    def coding(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment]
    ) -> EmulatedCoding:
        from farflung.runtime.emulated.coding import EmulatedCoding  # with numpy, by way of the codecs

        return EmulatedCoding(worker, plan, training, segments, EmulatedDevice(self._device.tflops))
