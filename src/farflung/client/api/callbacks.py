"""A user's functions that a run calls, on a thread of their own so that they cannot delay training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from farflung.client.output.progress import Observer
from farflung.client.output.records import StepRow
from farflung.errors import CallbackFailed
from farflung.text import raised

OnStep = Callable[[StepRow], object]
"""Called with the row of a step that was applied everywhere."""
OnValidation = Callable[[int, float | None], object] | Callable[[int, float | None, dict[str, float]], object]
"""Called with the number of steps done and the validation loss, which emulated devices do not have.

If the job has metrics, a dict of them is the third argument."""
OnCheckpoint = Callable[[int, str], object]
"""Called with the number of steps done and the folder or URL that now holds the state after them."""
OnMerge = Callable[[int, int], object]
"""Called at a merge of replicas that train apart, with the steps done and the bytes that workers sent."""


class Callbacks(Observer):
    """Calls a user's functions one after the other, in the order of what happened.

    If one raises, none is called any more, `error` says which, and `on_failure` is called on the thread of
    the callbacks.
    """

    def __init__(
        self,
        on_step: OnStep | None,
        on_validation: OnValidation | None,
        on_checkpoint: OnCheckpoint | None,
        on_merge: OnMerge | None,
        on_failure: Callable[[CallbackFailed], None],
    ) -> None:
        self._functions = {
            "on_step": on_step,
            "on_validation": on_validation,
            "on_checkpoint": on_checkpoint,
            "on_merge": on_merge,
        }
        self._on_failure = on_failure
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_over = False
        self.error: CallbackFailed | None = None
        self.thread = threading.Thread(target=self._work, name="farflung-callbacks", daemon=True)
        if any(self._functions.values()):
            self.thread.start()

    def stepped(self, row: StepRow) -> None:
        self._call("on_step", row)

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        self._call("on_validation", step, loss, *([dict(metrics)] if metrics else []))

    def checkpointed(self, step: int, place: str) -> None:
        self._call("on_checkpoint", step, place)

    def merged(self, step: int, bytes_sent: int) -> None:
        self._call("on_merge", step, bytes_sent)

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` once every call so far has returned, and end the thread."""

        def end() -> None:
            self._is_over = True
            then()

        if self.thread.is_alive():
            self._queue.put(end)
        else:
            then()

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._functions[name]
        if function is not None:
            self._queue.put(lambda: self._guard(name, function, arguments))

    def _guard(self, name: str, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.error is not None:
            return
        try:
            function(*arguments)
        except BaseException as error:  # also SystemExit: it would end this thread and no other
            self.error = CallbackFailed(raised(name, error))
            self.error.__cause__ = error
            self._on_failure(self.error)

    def _work(self) -> None:
        while not self._is_over:
            self._queue.get()()
