"""Ctrl-C while an event loop runs: a polite first time, a firm second one, and the default after that.

Keeps what torch prints about a failed capture off the terminal; our error says it in one line.
"""

from __future__ import annotations

import asyncio
import io
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from types import FrameType

from farflung.cli.render.output import note
from farflung.errors import CaptureError

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


class Ending:
    """How the task that makes this ends a run, as signals ask: `stop` is its orderly way while the run lasts.

    Before a run there is nothing to be kept in order, and when it `is_over` it is no longer in the way.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.stop: Callable[[], object] | None = None
        self.is_over = False

    def in_order(self) -> None:
        """What the first signal asks for."""
        if self.is_over:
            note("the run is over: its workers are being stopped (Ctrl-C again does not wait for them)")
        elif self.stop is not None:
            self.stop()
        else:
            self.at_once()

    def at_once(self) -> None:
        """What the second signal asks for."""
        self._task.cancel()


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


@contextmanager
def suppress_torch_output() -> Iterator[None]:
    """Hold back standard error and logging in this block; dropped after a `CaptureError`, else written."""
    stream, held = sys.stderr, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(held), remembering_interrupts():
            yield
    except CaptureError:
        held = io.StringIO()
        raise
    finally:
        logging.disable(logging.NOTSET)
        stream.write(held.getvalue())
