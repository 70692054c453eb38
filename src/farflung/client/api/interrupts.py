"""Signals of a waiting main thread: the first stops a run in good order, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_signals(
    numbers: Collection[signal.Signals],
    first: Callable[[signal.Signals], object],
    second: Callable[[], object],
) -> Iterator[None]:
    """Call `first` with the first of these signals in this block, and `second` at the next.

    A third one has the effect that it had before the block. Outside the main thread, which alone gets
    signals, the block changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    came: list[int] = []

    def act(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            first(signal.Signals(number))
        else:
            release()
            second()

    def release() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in numbers:
        signal.signal(number, act)
    try:
        yield
    finally:
        release()
