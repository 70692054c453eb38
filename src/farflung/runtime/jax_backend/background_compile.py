"""Build something slow on a separate thread before it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Made = TypeVar("Made")


class NoLongerWanted(Exception):
    """Raised on the building thread when the result is not needed any more."""


class Wanted:
    """Whether the result is still needed; the builder checks it between two parts of the work."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        """From now on it is not."""
        self._over.set()

    def check(self) -> None:
        """Go on, or raise NoLongerWanted."""
        if self._over.is_set():
            raise NoLongerWanted


class Later(Generic[Made]):
    """`make(wanted)`, which begins now. Its thread does not keep the process alive.

    What XLA has begun to compile it ends: `close` waits for that, and nothing further begins. Whoever only
    forgets this object has nothing further begin either.
    """

    def __init__(self, make: Callable[[Wanted], Made]) -> None:
        self._wanted = Wanted()
        self._future: Future[Made] = Future()
        arguments = (make, self._wanted, self._future)
        self._thread = threading.Thread(target=_run, args=arguments, name="farflung-compile", daemon=True)
        self._thread.start()

    def get(self) -> Made:
        """Wait for it; raises what `make` raised."""
        return self._future.result()

    def close(self) -> None:
        """Return when nothing is being made any more."""
        self._wanted.end()
        self._thread.join()

    def __del__(self) -> None:
        self._wanted.end()


def _run(make: Callable[[Wanted], Made], wanted: Wanted, future: Future[Made]) -> None:
    try:
        future.set_result(make(wanted))
    except BaseException as error:
        future.set_exception(error)
