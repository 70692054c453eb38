"""The device itself, as a worker measures it: products by precision, memory, copies and launches."""

from __future__ import annotations

import msgspec
import torch

from farflung.runtime.torch_backend.profiling.rates import measure_rates, measure_tflops


def rates(device: torch.device) -> list[dict[str, float]]:
    """One row of TFLOP/s, GB/s and microseconds."""
    found = {"float32_tflops": measure_tflops(device), **msgspec.to_builtins(measure_rates(device))}
    return [{name: float(f"{rate:.4g}") for name, rate in found.items()}]
