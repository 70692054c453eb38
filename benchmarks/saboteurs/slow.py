"""An honest worker whose device is slow: each of its tasks sleeps, so that several share a processor.

    SLOW_SECONDS=0.01 python -m benchmarks.saboteurs.slow join HOST:PORT ...

It computes what others compute, bit for bit.
"""

from __future__ import annotations

import os
import time
from typing import Any

import farflung.runtime.torch_backend.backend as backend
from farflung.runtime.torch_backend.segment import TorchSegment

SECONDS = "SLOW_SECONDS"
TASK_SECONDS = float(os.environ.get(SECONDS, "0.01"))


class SlowSegment(TorchSegment):
    """A segment whose tasks take so long each."""

    def forward(self, *given: Any) -> Any:
        time.sleep(TASK_SECONDS)
        return super().forward(*given)

    def backward(self, *given: Any) -> None:
        time.sleep(TASK_SECONDS)
        super().backward(*given)

    def accumulate(self, *given: Any) -> None:
        time.sleep(TASK_SECONDS)
        super().accumulate(*given)


if __name__ == "__main__":
    from farflung.cli.main import main

    backend.TorchSegment = SlowSegment  # type: ignore[misc]
    main()
