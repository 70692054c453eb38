"""JAX as a backend of a worker: on the CPU, or whatever device JAX finds first."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import numpy as np
import psutil

from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import Offer
from farflung.runtime.coding import Coding
from farflung.runtime.jax_backend import arrays, speed, store
from farflung.runtime.jax_backend.arrays import AnyArray
from farflung.runtime.jax_backend.lowering import lacks
from farflung.runtime.jax_backend.segment import JaxSegment
from farflung.runtime.jax_backend.verify import verify_segment
from farflung.runtime.training import Training
from farflung.workload.form import Form


class JaxBackend:
    """See `runtime.backend.Backend`; arrays are JAX's, or NumPy's views of what has come over a link.

    What is compiled is kept in the folder `kept`, if one is given.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        if kept is not None:
            store.keep_in(kept)

    def offer(self) -> Offer:
        device = jax.devices()[0]
        on_cpu = device.platform == "cpu"
        name = (platform.processor() or platform.machine()) if on_cpu else device.device_kind
        return Offer(device.platform, name, psutil.cpu_count() or 1, f"jax {jax.__version__}", lacks())

    def measure_tflops(self) -> float:
        return speed.measure_tflops()

    def allocate(self, size: int) -> memoryview:
        return arrays.allocate(size)

    def array(self, buffer: memoryview, form: Form) -> np.ndarray:
        return arrays.over(buffer, form)

    def memory(self, array: AnyArray) -> memoryview:
        return arrays.memory(array)

    def verify(self, segment: Segment, batch: int) -> None:
        verify_segment(segment, batch)

    def runner(
        self,
        segment: Segment,
        state: Mapping[str, AnyArray],
        training: Training,
        recompute: bool = False,
    ) -> JaxSegment:
        if self._kept is not None:
            store.prune(self._kept)
        return JaxSegment(segment, state, training, recompute)

    def coding(self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment]) -> Coding:
        return Coding(worker, plan, training, segments)
