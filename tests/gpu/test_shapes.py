"""On a device nothing runs on the host, and the host reads once in a unit: shown by shapes, without a GPU."""

from __future__ import annotations

import pytest
from benchmarks.zoo import CASES, MODELS
from tests.gpu import faults, shapes
from tests.gpu.conftest import Ask

from farflung.runtime.optimizers.declared import AdamW

pytestmark = pytest.mark.slow
NAMES = [
    *(found.name for found in CASES),
    *(pytest.param(found.name, marks=pytest.mark.full) for found in MODELS),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_without_an_op_on_the_host(name: str, there: Ask) -> None:
    counts = there(shapes.run, name)
    assert counts.on_device > 100
    assert not counts.on_host
    assert counts.reads == counts.segments


@pytest.mark.parametrize("name", ["gpt-tied", "resnet"])
def test_so_it_does_with_recomputation_and_adamw(name: str, there: Ask) -> None:
    counts = there(shapes.run, name, 3, True, AdamW(lr=1e-3))
    assert not counts.on_host and counts.reads == counts.segments


def test_a_creation_op_without_its_device_is_found(there: Ask) -> None:
    found = there(faults.run, faults.creation_without_device, "gpt2-mask")
    assert isinstance(found, str) and ("same device" in found or "different devices" in found)


def test_state_that_was_left_on_the_host_is_found(there: Ask) -> None:
    found = there(faults.run, faults.state_on_the_host, "chain")
    assert isinstance(found, str) and ("same device" in found or "different devices" in found)


def test_a_number_that_is_read_too_early_is_found(there: Ask) -> None:
    counts = there(faults.run, faults.loss_read_at_once, "chain")
    assert counts.reads > counts.segments
