"""Counting on a device gives the numbers of the CPU, shown with an accelerator that is not there."""

from __future__ import annotations

import pytest
import torch
from benchmarks.race.counting.corpus import built_in
from benchmarks.race.counting.entrant import entrant
from benchmarks.race.counting.training import train
from tests.benchmarks.test_count import WARM
from tests.gpu.conftest import Ask
from tests.gpu.conftest import there as there
from tests.gpu.numbers_device import NAME

pytestmark = pytest.mark.slow
SYSTEMS = (
    "2=dense", "2=axes10/axes100-dithered", "2=row-topk30-int4/masked30-int4", "2=stock-int8", "stock-bf16",
)  # fmt: skip


def difference(name: str) -> tuple[float, float]:
    """The largest relative difference of a loss on the device, and of the bytes that were sent."""
    torch.set_num_threads(1)
    one = entrant(name, WARM, built_in())
    here, on_device = (
        train(one, WARM, built_in(), 0, torch.device(device), "code") for device in ("cpu", NAME)
    )
    pairs = [*zip(here.losses, on_device.losses, strict=True)]
    pairs += [(a, b) for (_, a), (_, b) in zip(here.evaluations, on_device.evaluations, strict=True)]
    sizes = abs(here.payload_bytes - on_device.payload_bytes) / max(1, here.payload_bytes)
    return max(abs(a - b) / abs(a) for a, b in pairs), sizes


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["2=int8/int4-stochastic", *(pytest.param(name, marks=pytest.mark.full) for name in SYSTEMS)]
)
def test_a_device_counts_as_the_cpu_does(name: str, there: Ask) -> None:
    losses, sizes = there(difference, name)
    assert losses < 1e-5 and sizes < 1e-2
