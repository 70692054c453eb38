"""Ctrl-C while an event loop runs: a polite first time, a firm second one, and the default after that."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
