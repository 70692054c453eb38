"""How long an emulated device takes for so many floating point operations."""

from __future__ import annotations

import time
from collections.abc import Callable


class EmulatedDevice:
    """Sleeps flops / (tflops x 10^12) seconds for work of `flops` operations.

    `tflops` is what the device sustains, so an efficiency below its peak and the scale of an emulation are
    already in it. A sleep that ended late is made up for by the next ones, so that the time of many tasks is
    exact even where one is not.
    """

    def __init__(
        self,
        tflops: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.tflops = tflops
        self._clock = clock
        self._sleep = sleep
        self._late_seconds = 0.0

    def seconds(self, flops: float) -> float:
        """How long `flops` operations take."""
        return flops / (self.tflops * 1e12)

    def work(self, flops: float) -> None:
        """Return when `flops` operations would be done."""
        self.wait(self.seconds(flops))

    def wait(self, seconds: float) -> None:
        """Return when that time has passed since the last work was done."""
        due = self._clock() + seconds - self._late_seconds
        pause = due - self._clock()
        if pause > 0:
            self._sleep(pause)
        self._late_seconds = max(0.0, self._clock() - due)
