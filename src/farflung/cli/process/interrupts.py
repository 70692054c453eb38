"""Signals and stray output: Ctrl-C stops a lab in order, a second one at once, a third one kills the process.

`on_hang_up` lets a run leave its job to the broker when the terminal is closed.
`suppress_torch_output` hides what torch prints about a failed capture, which our error says in one line.
"""

from __future__ import annotations

import asyncio
import io
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from types import FrameType
from typing import TextIO

from farflung.errors import CaptureError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def remembering_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of this block if one inside it was swallowed.

    torch loses Ctrl-C in callbacks and bare `except` clauses. Use it on the main thread only.
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

    A third one has its default effect and ends the process.
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
def on_hang_up(leave: Callable[[], object]) -> Iterator[None]:
    """Call `leave` in this block when the terminal is closed; does nothing if that is ignored (`nohup`)."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        yield
        return

    def hang_up(number: int, frame: FrameType | None) -> None:
        # A closed terminal refuses what is printed, which must not end this process in any other way.
        sys.stdout, sys.stderr = _Unread(sys.stdout), _Unread(sys.stderr)
        leave()

    signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


class _Unread:
    """A stream whose other end may be gone: what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Nothing is left to write."""

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def suppress_torch_output() -> Iterator[None]:
    """Buffer standard error and logging in this block; drop them after a `CaptureError`, else print them."""
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
