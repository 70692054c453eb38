"""Build something slow on a separate thread before it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Cancelled(Exception):
    """Raised on the building thread when the result is not needed any more."""


class CancelToken:
    """Tells a builder that its result is not needed any more; it checks between two parts of the work."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        """Cancel the work."""
        self._over.set()

    def check(self) -> None:
        """Raise Cancelled if the work was cancelled."""
        if self._over.is_set():
            raise Cancelled


class BackgroundBuild(Generic[Made]):
    """Runs `make(wanted)` on a thread, which does not keep the process alive.

    XLA finishes a compilation that it has begun: `close` waits for that, and nothing further begins. Nothing
    further begins either once this object is garbage collected.
    """

    def __init__(self, make: Callable[[CancelToken], Made]) -> None:
        self._wanted = CancelToken()
        self._future: Future[Made] = Future()
        arguments = (make, self._wanted, self._future)
        self._thread = threading.Thread(target=_run, args=arguments, name="farflung-compile", daemon=True)
        self._thread.start()

    def get(self) -> Made:
        """Wait for the result; raises what `make` raised."""
        return self._future.result()

    def close(self) -> None:
        """Cancel the work and wait until the thread has ended."""
        self._wanted.end()
        self._thread.join()

    def __del__(self) -> None:
        self._wanted.end()


def _run(make: Callable[[CancelToken], Made], wanted: CancelToken, future: Future[Made]) -> None:
    try:
        future.set_result(make(wanted))
    except BaseException as error:
        future.set_exception(error)
