"""What a device sustains: matrix products by precision, memory, copies to and from the host, launches.

On a device with events these time what the host has queued; elsewhere the host's clock does, up to the end of
the work. Of a CPU with one thread that is the thread's own time, which other programs on the machine change
little. Everything together takes one to two seconds, and at most 0.3 GB of the device's memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from farflung.plans.rates import LEAST_RATE, MOST_RATE, Rates
from farflung.runtime.torch_backend import pinned
from farflung.runtime.torch_backend.crossing import has_streams
from farflung.runtime.torch_backend.device import HOST
from farflung.runtime.torch_backend.modes import repeatable, use_mode
from farflung.runtime.torch_backend.profiling.timing import clock

SIZES = (256, 1024)
SIZES_ON_GPU = (1024, 4096)
"""Products of the larger matrices are timed unless the smaller ones show that they take too long."""
LONGEST_SECONDS = 1.0
SECONDS, BRIEF_SECONDS = 0.25, 0.1
"""How long float32 products are repeated, and everything else."""
SAMPLE_SECONDS = 0.005
"""Runs are queued together that take about so long, so that an event's own time does not count."""
MOST_RUNS = 1000
COPIED_BYTES, COPIED_BYTES_ON_GPU = 2**25, 2**27
"""More than a device has in caches, as far as one is known."""


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16; a GPU that only emulates it does not count, a CPU does."""
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        one = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
        torch.mm(one, one)
    except (TypeError, RuntimeError):  # as MPS before macOS 14 says it
        return False
    return True


def has_tf32(device: torch.device) -> bool:
    """Whether float32 products may compute in TF32: NVIDIA's GPUs since Ampere."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def measure_tflops(device: torch.device = HOST) -> float:
    """TFLOP/s of float32 matrix products without TF32, on a device or all of this process's threads."""
    with repeatable(device):
        return _product_tflops(device, torch.float32, SECONDS)


def measure_rates(device: torch.device = HOST) -> Rates:
    """The other rates of a device, as far as it has them; leaves it in the fast mode."""
    use_mode(device, deterministic=False)
    to_device, from_device = _copy_rates(device) if has_streams(device) else (None, None)
    tf32, bfloat16 = has_tf32(device), has_bfloat16(device)
    return Rates(
        tf32_tflops=_bounded(_product_tflops(device, torch.float32, BRIEF_SECONDS)) if tf32 else None,
        bfloat16_tflops=_bounded(_product_tflops(device, torch.bfloat16, BRIEF_SECONDS))
        if bfloat16
        else None,
        memory_gb_per_second=_bounded(_memory_rate(device)),
        to_device_gb_per_second=to_device,
        from_device_gb_per_second=from_device,
        launch_us=_bounded(_launch_us(device)),
    )


def _bounded(rate: float) -> float:
    return min(max(rate, LEAST_RATE), MOST_RATE)


@torch.no_grad()
def _product_tflops(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    small, large = SIZES if device.type == "cpu" else SIZES_ON_GPU
    product = _product(device, dtype, small)
    product()  # the first one creates threads and buffers
    took, size = _elapsed(product, 1, device), small
    if took * (large / small) ** 3 < LONGEST_SECONDS:
        product, size = _product(device, dtype, large), large
    return float(2 * size**3 / _seconds(product, device, seconds) / 1e12)


def _product(device: torch.device, dtype: torch.dtype, size: int) -> Callable[[], object]:
    left, right, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def _copied(device: torch.device) -> Tensor:
    size = COPIED_BYTES if device.type == "cpu" else COPIED_BYTES_ON_GPU
    return torch.ones(size, dtype=torch.uint8, device=device)


def _memory_rate(device: torch.device) -> float:
    """10^9 bytes read and written a second by a copy within the device."""
    source = _copied(device)
    target = torch.ones_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device, BRIEF_SECONDS) / 1e9


def _copy_rates(device: torch.device) -> tuple[float, float]:
    """10^9 bytes a second to and from the device, out of and into pinned memory of the host."""
    there = _copied(device)
    here = pinned.pinned_memory(there.nbytes)
    back = _seconds(lambda: here.copy_(there, non_blocking=True), device, BRIEF_SECONDS)
    to = _seconds(lambda: there.copy_(here, non_blocking=True), device, BRIEF_SECONDS)
    return _bounded(there.nbytes / to / 1e9), _bounded(there.nbytes / back / 1e9)


def _launch_us(device: torch.device) -> float:
    one = torch.ones(1, device=device)
    return 1e6 * _seconds(lambda: one.add_(1), device, BRIEF_SECONDS / 10)


def _seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The median of samples that together take about `seconds`, after a first run; at least one sample.

    An interrupted sample does not count, unless the device is so slow that there is no other.
    """
    work()
    once = max(_elapsed(work, 1, device), 1e-9)
    runs = min(MOST_RUNS, max(1, round(SAMPLE_SECONDS / once)))
    samples, deadline = [once] if runs == 1 else [], time.perf_counter() + seconds
    while not samples or time.perf_counter() < deadline:
        samples.append(_elapsed(work, runs, device))
    return max(statistics.median(samples), 1e-9)


def _elapsed(work: Callable[[], object], runs: int, device: torch.device) -> float:
    """The seconds of each of `runs` runs that follow one another."""
    if not has_streams(device):
        now = clock if device.type == "cpu" else time.perf_counter
        begun = now()
        for _ in range(runs):
            work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return (now() - begun) / runs
    module: Any = torch.get_device_module(device)
    stream = module.current_stream(device)
    begin, end = (module.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    for _ in range(runs):
        work()
    end.record(stream)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / runs
