"""The device while its worker runs: how fast it is by now, and whether what computes on it is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farflung.errors import DeviceHeld
from farflung.protocol.messages import Measured, Message
from farflung.protocol.registration import Device
from farflung.runtime.backend import AnyBackend
from farflung.transport.timeouts import Timeouts
from farflung.worker.computing.compute import ComputeThread
from farflung.worker.computing.task_deadlines import Watch, most_seconds
from farflung.worker.measuring import describe_device, improved, measure_again
from farflung.worker.records import State


class DeviceWatch:
    """Watches the compute thread and measures its device; better rates go to the broker by `send`."""

    def __init__(
        self,
        compute: ComputeThread,
        state: Callable[[], State],
        send: Callable[[Message], None],
        timeouts: Callable[[], Timeouts],
    ) -> None:
        self._compute = compute
        self._state, self._send, self._timeouts = state, send, timeouts
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device with the best of its measured rates; call `begin` first."""
        assert self._device is not None
        return self._device

    async def begin(self, backend: AnyBackend, memory_bytes: int) -> None:
        """Measure the device for the first time."""
        self._device = await asyncio.to_thread(describe_device, backend, memory_bytes)

    async def watch(self) -> None:
        """Watch the compute thread; raises DeviceHeld if it is stuck, DeviceFailed if its device is lost."""
        loop = asyncio.get_running_loop()
        watch, before = Watch(), loop.time()
        while not (overrun := watch.overrun(self._most_seconds())):
            if self._compute.failure is not None:
                raise self._compute.failure
            pause = self._timeouts().heartbeat_seconds
            await asyncio.sleep(pause)
            now = loop.time()
            watch = watch.seen(self._compute.stopwatch.doing, min(now - before, 2 * pause))
            before = now
        raise DeviceHeld(f"{overrun}, and only the end of its process ends an op")

    def _most_seconds(self) -> float:
        return most_seconds(self._compute.attempt, self._state().attempt, self._timeouts().chore_seconds)

    async def stay_measured(self) -> None:
        """Measure the device again while it is idle, and tell the broker of better rates."""
        await measure_again(self._is_idle, self.measure)

    def _is_idle(self) -> bool:
        state = self._state()
        return state.load is None and not state.away

    async def measure(self) -> None:
        """Measure the device once more."""
        found = await asyncio.wrap_future(self._compute.measure())
        if found is not None and (better := improved(self.device, found)) is not self._device:
            self._device = better
            self._send(Measured(better.tflops, better.rates))
