"""The device itself: products by precision, memory, copies to and from the host, and the cost of a launch."""

from __future__ import annotations

import torch
from benchmarks.gpu.clock import seconds, wait_for
from torch import Tensor

ELEMENTS = 2**26
LAUNCHES = 1000


def rates(device: torch.device) -> dict[str, float]:
    """TFLOP/s, GB/s and microseconds."""
    return {
        **products(device),
        "memory_gbps": round(memory_gbps(device), 1),
        **copies(device),
        "launch_us": round(launch_us(device), 2),
    }


def products(device: torch.device) -> dict[str, float]:
    """TFLOP/s of square matrix products in float32, TF32 (where the device has it) and bfloat16."""
    size = 8192 if device.type == "cuda" else 1024
    before = torch.backends.cuda.matmul.allow_tf32
    found = {}
    try:
        for name, dtype, tf32 in (
            ("float32", torch.float32, False),
            ("tf32", torch.float32, True),
            ("bfloat16", torch.bfloat16, False),
        ):
            if tf32 and device.type != "cuda":
                continue
            torch.backends.cuda.matmul.allow_tf32 = tf32
            left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
            took = seconds(lambda left=left, right=right: torch.mm(left, right), device)
            found[f"{name}_tflops"] = round(2 * size**3 / took / 1e12, 3)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return found


def memory_gbps(device: torch.device) -> float:
    """Bytes read and written a second by a copy within the device."""
    source, target = torch.ones(ELEMENTS, device=device), torch.empty(ELEMENTS, device=device)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), device) / 1e9


def copies(device: torch.device) -> dict[str, float]:
    """GB/s from and to pinned memory of the host; on a CPU, within it."""
    on_device, on_host = torch.ones(ELEMENTS, device=device), pinned(ELEMENTS, device)
    out = seconds(lambda: on_host.copy_(on_device, non_blocking=True), device)
    back = seconds(lambda: on_device.copy_(on_host, non_blocking=True), device)
    return {
        "to_host_gbps": round(on_host.nbytes / out / 1e9, 2),
        "to_device_gbps": round(on_host.nbytes / back / 1e9, 2),
    }


def pinned(elements: int, device: torch.device) -> Tensor:
    """Float32 memory of the host from which the device copies directly."""
    return torch.ones(elements, pin_memory=device.type == "cuda")


def launch_us(device: torch.device) -> float:
    """Microseconds of one small operation of many that the host queues one after another."""
    one = torch.ones(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.add_(1)
        wait_for(device)

    return seconds(launches, device) / LAUNCHES * 1e6
