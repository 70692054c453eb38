"""Rates of the accelerator that is not there: which are measured, by what, and in which mode."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

import torch
from tests.gpu.numbers_device import NAME, Planted

from farflung.plans import Rates
from farflung.protocol.worker import Device
from farflung.runtime.torch_backend import rates
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker.service import describe_device


class Seen(NamedTuple):
    """Rates, and for each call of a product whether TF32 was allowed: for float32's, then for the others."""

    tflops: float
    rates: Rates
    alone: list[bool]
    others: list[bool]


def measured(tf32: bool) -> Seen:
    """Measure with small matrices, on a device that has TF32 or not."""
    allowed: list[bool] = []

    def before(name: str) -> None:
        if name == "aten::mm":
            allowed.append(torch.backends.cuda.matmul.allow_tf32)

    with _small() as stack:
        stack.enter_context(patch.object(rates, "has_tf32", lambda device: tf32))
        stack.enter_context(patch.object(Planted, "before", before))
        backend = TorchBackend(torch.device(NAME))
        tflops = backend.measure_tflops()
        alone, allowed[:] = list(allowed), []
        found = backend.measure_rates()
    return Seen(tflops, found, alone, allowed)


def described_without_bfloat16() -> Device:
    """A device that refuses bfloat16, as its worker offers it."""
    with _small() as stack, patch.object(Planted, "lacks", frozenset({torch.bfloat16})):
        stack.enter_context(patch.object(TorchBackend, "kernel_digest", lambda self: ""))
        return describe_device(TorchBackend(torch.device(NAME)), 10**9)


def _small() -> ExitStack:
    stack = ExitStack()
    for name, value in (("SIZES_ON_GPU", (8, 16)), ("SECONDS", 0.0), ("COPIED_BYTES_ON_GPU", 2**12)):
        stack.enter_context(patch.object(rates, name, value))
    return stack
