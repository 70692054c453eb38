"""What a device is worth, as its backend says."""

from __future__ import annotations

from farflung.plans import Rates
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker.measuring import describe_device


def test_a_device_that_computes_is_measured() -> None:
    assert 1e-4 < TorchBackend().measure_tflops() < 1e4


def test_an_emulated_device_is_what_it_was_said_to_be() -> None:
    assert EmulatedBackend(12.5).measure_tflops() == 12.5


def test_a_cpu_has_a_rate_in_bfloat16_and_of_its_memory_but_no_tf32_and_no_copies() -> None:
    rates = TorchBackend().measure_rates()
    known = [name for name in Rates.__struct_fields__ if getattr(rates, name) is not None]
    assert known == ["bfloat16_tflops", "memory_gb_per_second", "launch_us"]
    assert 1e-5 < (rates.bfloat16_tflops or 0) < 1e4


def test_an_emulated_device_has_one_rate() -> None:
    assert describe_device(EmulatedBackend(12.5), 10**9).rates is None
