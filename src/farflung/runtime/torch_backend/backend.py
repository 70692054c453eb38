"""PyTorch as a backend of a worker: today on the CPU."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

import psutil
import torch
from torch import Tensor

from farflung.opdag.segment import Segment
from farflung.plans import Plan
from farflung.runtime.backend import Offer
from farflung.runtime.coding import Coding
from farflung.runtime.torch_backend import speed, tensors
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.runtime.torch_backend.uncompiled import keep_compiler_out
from farflung.runtime.torch_backend.verify import verify_segment
from farflung.runtime.training import Training


class TorchBackend:
    """See `runtime.backend.Backend`; arrays are tensors."""

    allocate = staticmethod(tensors.allocate)
    array = staticmethod(tensors.over)
    memory = staticmethod(tensors.memory)

    def __init__(self) -> None:
        keep_compiler_out()

    def offer(self) -> Offer:
        name = platform.processor() or platform.machine()
        return Offer("cpu", name, psutil.cpu_count() or 1, f"torch {torch.__version__}")

    def measure_tflops(self) -> float:
        return speed.measure_tflops()

    def verify(self, segment: Segment, batch: int) -> None:
        verify_segment(segment, batch)

    def runner(
        self, segment: Segment, state: Mapping[str, Tensor], training: Training, recompute: bool = False
    ) -> TorchSegment:
        return TorchSegment(segment, state, training, recompute)

    def coding(self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment]) -> Coding:
        return Coding(worker, plan, training, segments)
