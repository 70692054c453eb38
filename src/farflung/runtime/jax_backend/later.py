"""Something that takes long to make, made on a thread of its own while nobody waits for it yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Later(Generic[Made]):
    """`make()`, which begins now. Its thread does not keep the process alive."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._future: Future[Made] = Future()
        threading.Thread(target=self._run, args=(make,), name="farflung-compile", daemon=True).start()

    def get(self) -> Made:
        """Wait for it; raises what `make` raised."""
        return self._future.result()

    def _run(self, make: Callable[[], Made]) -> None:
        try:
            made = make()
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(made)
