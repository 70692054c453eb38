"""The memory that a segment takes on the device, beside what a worker says beforehand that it needs."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import torch
from benchmarks.gpu.clock import wait_for
from benchmarks.gpu.runner import GPT2, OPTIMIZER, SIZES, Size, model, ours

from farflung.opdag.graph import Precision
from farflung.runtime.footprint import required_bytes
from farflung.runtime.optimizers.memory import memory_of_updates

STEPS = 3
WINDOW = 1


def memory(device: torch.device) -> Iterator[dict[str, object]]:
    """GB told and at the peak of some steps, in the allocator's count of tensors and of what it reserves."""
    if device.type != "cuda":
        return
    cases: list[tuple[Size, Precision]] = [(SIZES[1], "float32"), (GPT2, "bfloat16")]
    kinds = (False, False), (False, True), (True, False)
    for case, kind in itertools.product(cases, kinds):
        yield row(*case, device, *kind)


def row(
    size: Size, precision: Precision, device: torch.device, recompute: bool, compiles: bool
) -> dict[str, object]:
    """One model, whose segment is alone on the device."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    mine = ours(model(size), size, device, precision, compiles, recompute)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(STEPS):
        mine.step()
    wait_for(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    reserved = torch.cuda.max_memory_reserved(device) - before
    told = required_bytes(mine.segment, size.samples, WINDOW, recompute, memory_of_updates(OPTIMIZER))
    return {
        "model": size.name,
        "precision": precision,
        "recompute": recompute,
        "compiled": compiles,
        "told_gb": round(told / 1e9, 2),
        "peak_gb": round(peak / 1e9, 2),
        "reserved_gb": round(reserved / 1e9, 2),
        "told_over_peak": round(told / peak, 3),
    }
