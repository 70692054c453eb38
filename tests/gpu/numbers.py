"""A model of the zoo on the accelerator that is not there, beside the same on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo import devices
from benchmarks.zoo.devices import Difference
from tests.gpu.numbers_device import NAME


def compare(name: str, *given: Any) -> Difference:
    """See `benchmarks.zoo.devices.compare`."""
    torch.set_num_threads(1)
    return devices.compare(torch.device(NAME), name, *given)
