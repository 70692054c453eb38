"""Ctrl-C while an event loop runs: a polite first time, a firm second one, and the default after that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def remembering_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of this block too, if one inside it was swallowed.

    torch has callbacks and bare `except`s in which Ctrl-C is lost. Only for the main thread.
    """
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt


@contextmanager
def on_interrupt(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` at the first SIGINT or SIGTERM in this block and `second` at the next.

    A third one ends the process as if nobody caught it.
    """
    loop = asyncio.get_running_loop()
    actions = iter((first, second))

    def act() -> None:
        action = next(actions)
        if action is second:
            release()
        action()

    def release() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        release()
        for number, handler in before.items():
            signal.signal(number, handler)
