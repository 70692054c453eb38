"""A device's rates, measured again while its worker is idle."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.broker_fleet import broker, identity

from farflung.broker.core import state
from farflung.client.run.broker_client import ask_status
from farflung.errors import DeviceFailed
from farflung.plans.rates import LEAST_RATE, MOST_RATE, Rates
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Measured
from farflung.protocol.registration import Device
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.torch_backend.device import HOST
from farflung.runtime.torch_backend.profiling import rates as profiling
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.measuring import LEAST_GAIN, improved, measure_again
from farflung.worker.options import WorkerOptions
from farflung.worker.service import WorkerService


def device(tflops: float, rates: Rates | None = None) -> Device:
    return Device("cpu", "a", 2, 10**9, "torch", Opset.own(), tflops, rates=rates)


NUMBERS = st.floats(1e-3, 1e3)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_the_best_of_what_was_measured_is_kept(found: list[float]) -> None:
    known = device(found[0], Rates(memory_gb_per_second=found[0], launch_us=found[0]))
    for rate in found:
        known = improved(known, Measured(rate, Rates(memory_gb_per_second=rate, launch_us=rate)))
    assert known.rates is not None and known.rates.launch_us is not None
    assert max(found) / LEAST_GAIN <= known.tflops <= max(found)
    assert known.rates.memory_gb_per_second == known.tflops
    assert min(found) <= known.rates.launch_us <= LEAST_GAIN * min(found)


def test_what_is_hardly_better_or_new_is_the_same_device() -> None:
    known = device(10.0, Rates(bfloat16_tflops=20.0))
    assert improved(known, Measured(10.1, Rates(bfloat16_tflops=20.1, launch_us=1.0))) is known
    assert improved(known, Measured(4.0, None)) is known
    assert improved(known, Measured(12.0, None)) == device(12.0, Rates(bfloat16_tflops=20.0))
    assert LEAST_RATE < 1e-3 and MOST_RATE > 1e3


def test_a_worker_measures_only_while_it_is_idle() -> None:
    idle, measured = [True, False, True, True], 0

    async def measure() -> None:
        nonlocal measured
        measured += 1

    asyncio.run(measure_again(lambda: idle.pop(0), measure, iter([0.0] * 3)))
    assert measured == 3 and not idle


class Failing(EmulatedBackend):
    """A backend that cannot measure its device, which may have failed for good."""

    def __init__(self, for_good: bool, error: Exception) -> None:
        super().__init__(1.0)
        self.for_good, self.error = for_good, error

    def measure_tflops(self) -> float:
        raise self.error

    def failure(self, error: Exception) -> Exception | None:
        return DeviceFailed("the device is lost") if self.for_good else None


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ZeroDivisionError("no time has passed")])
@pytest.mark.parametrize("for_good", [False, True])
def test_a_device_that_cannot_be_measured_fails_only_if_it_is_lost(for_good: bool, error: Exception) -> None:
    thread = ComputeThread("a", 10**9, Failing(for_good, error), lambda outcome: None, lambda outgoing: None)
    thread.start()
    assert thread.measure().result(60) is None
    thread.close()
    thread.join(60)
    assert (thread.failure is not None) == for_good


def test_a_measurement_that_nobody_waits_for_is_not_made() -> None:
    thread = ComputeThread("a", 10**9, EmulatedBackend(2.5), lambda outcome: None, lambda outgoing: None)
    dropped: Future[Measured | None] = thread.measure()
    assert dropped.cancel()
    kept = thread.measure()
    thread.start()
    assert kept.result(60) == Measured(2.5, None)
    thread.close()
    thread.join(60)


def test_time_that_other_programs_took_does_not_count_on_one_thread() -> None:
    """A thread that sleeps is like one that had to wait for its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert profiling._seconds(lambda: time.sleep(0.05), HOST, 0.1) < 0.025
    finally:
        torch.set_num_threads(before)


class Growing(EmulatedBackend):
    """A device that another program uses at first, and a third one later."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.rates = [1.0, 4.0, 2.0]

    def measure_tflops(self) -> float:
        return self.rates.pop(0)


def test_a_broker_plans_with_the_best_rates_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LEAST_MEASURING_SECONDS", 0.0)

    async def scene() -> None:
        async with broker(tmp_path) as running, asyncio.timeout(60):
            worker, backend = await identity(running, tmp_path, "a", "worker"), Growing()
            service = WorkerService(WorkerOptions(worker, "127.0.0.1:0", 2**20, backend))
            await service.start()
            registering = asyncio.create_task(service.stay_registered())
            while not (shown := (await ask_status(worker)).workers):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert shown[0].tflops == 1.0 and shown[0].measured_seconds >= 0
            while backend.rates:
                await service.driver.device_watch.measure()
            while (shown := (await ask_status(worker)).workers)[0].tflops == 1.0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert shown[0].tflops == 4.0
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            await service.stop("the test is over")

    asyncio.run(scene())
