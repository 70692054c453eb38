"""What a device is worth, as its backend says."""

from __future__ import annotations

from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.torch_backend.backend import TorchBackend


def test_a_device_that_computes_is_measured() -> None:
    assert 1e-4 < TorchBackend().measure_tflops() < 1e4


def test_an_emulated_device_is_what_it_was_said_to_be() -> None:
    assert EmulatedBackend(12.5).measure_tflops() == 12.5
