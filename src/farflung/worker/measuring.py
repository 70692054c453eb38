"""How fast a worker's device is: measured when the worker starts, and again while it is idle.

Another program may use the device at the start, and plans would rest on that for as long as the worker lives.
So the worker measures again at growing intervals and keeps the best of each rate: whatever shares the device
makes it slower, and nothing makes it faster than it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from farflung.plans.rates import Rates
from farflung.plans.topology import MOST_TFLOPS
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Measured
from farflung.protocol.registration import Device
from farflung.runtime.backend import AnyBackend
from farflung.worker.machine import machine_of, usable_cores

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60.0, 3600.0
LEAST_GAIN = 1.02
"""A rate that is better by less is the same one."""


def describe_device(backend: AnyBackend, memory_bytes: int) -> Device:
    """Describe this worker's device for the broker; takes a moment, because it tries the device out."""
    offer, found = backend.offer(), measured(backend)
    return Device(
        kind=offer.kind,
        name=offer.name,
        cores=usable_cores() if offer.kind == "cpu" else offer.cores,
        memory_bytes=memory_bytes,
        framework=offer.framework,
        opset=Opset.own(),
        tflops=found.tflops,
        lacks=offer.lacks,
        kernels=backend.kernel_digest(),
        rates=found.rates,
        machine=machine_of(offer.kind),
        threads=offer.threads,
    )


def measured(backend: AnyBackend) -> Measured:
    """The rates of the device now; takes up to two seconds."""
    return Measured(min(backend.measure_tflops(), MOST_TFLOPS), backend.measure_rates())


def improved(device: Device, found: Measured) -> Device:
    """The device with the best of the rates that it is known for and those that were `found`.

    It is the same one if nothing is better by more than `LEAST_GAIN`.
    """
    tflops = found.tflops if found.tflops > LEAST_GAIN * device.tflops else device.tflops
    rates = device.rates
    if rates is not None and found.rates is not None:
        better = {name: _better(name, rates, found.rates) for name in rates.__struct_fields__}
        rates = msgspec.structs.replace(rates, **better)
    if (tflops, rates) == (device.tflops, device.rates):
        return device
    return msgspec.structs.replace(device, tflops=tflops, rates=rates)


def _better(name: str, known: Rates, found: Rates) -> float | None:
    one: float | None = getattr(known, name)
    other: float | None = getattr(found, name)
    if one is None or other is None:
        return one
    is_better = one > LEAST_GAIN * other if name == "launch_us" else other > LEAST_GAIN * one
    return other if is_better else one


async def measure_again(
    is_idle: Callable[[], bool], measure: Callable[[], Awaitable[None]], pauses: Iterator[float] | None = None
) -> None:
    """Measure now and then while the worker is idle, for as long as it lives.

    The `pauses` between times are random, so that the workers of one machine do not measure together. A
    worker that is busy when it is time waits for the same pause once more.
    """
    for seconds in pauses or _pauses():
        await asyncio.sleep(seconds)
        while not is_idle():  # noqa: ASYNC110
            await asyncio.sleep(seconds)
        await measure()


def _pauses() -> Iterator[float]:
    seconds = FIRST_PAUSE_SECONDS
    while True:
        yield seconds * random.uniform(0.5, 1.5)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
