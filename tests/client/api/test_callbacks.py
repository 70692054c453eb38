"""Callbacks are called in order on their own thread, and the first that raises is the last."""

from __future__ import annotations

import threading

from tests.client.output.test_run_folder import row

from farflung.client.api.callbacks import Callbacks
from farflung.errors import CallbackFailed


def finished(callbacks: Callbacks) -> None:
    over = threading.Event()
    callbacks.finish(over.set)
    assert over.wait(30)


def test_a_slow_callback_holds_nobody_up_and_misses_nothing() -> None:
    calls: list[object] = []
    may_go_on = threading.Event()

    def on_step(row: object) -> None:
        may_go_on.wait(30)
        calls.append(row)

    on_validation = lambda step, loss: calls.append((step, loss))  # noqa: E731
    callbacks = Callbacks(on_step, on_validation, None, None, lambda error: None)
    callbacks.stepped(row(1))
    callbacks.validated(1, 2.5, {})
    callbacks.checkpointed(1, "there")  # nobody asked for these
    callbacks.stepped(row(2))
    assert calls == []
    may_go_on.set()
    finished(callbacks)
    assert calls == [row(1), (1, 2.5), row(2)]


def test_after_one_that_raises_none_is_called() -> None:
    failures: list[CallbackFailed] = []
    seen: list[int] = []

    def on_validation(step: int, loss: float | None) -> None:
        seen.append(step)
        raise SystemExit("enough")

    callbacks = Callbacks(lambda row: seen.append(-1), on_validation, None, None, failures.append)
    callbacks.validated(3, None, {})
    callbacks.validated(4, None, {})
    callbacks.stepped(row(5))
    finished(callbacks)
    assert seen == [3] and failures == [callbacks.error]
    assert str(failures[0]).startswith("on_validation raised SystemExit: enough (test_callbacks.py:")


def test_without_callbacks_there_is_no_thread() -> None:
    callbacks = Callbacks(None, None, None, None, lambda error: None)
    callbacks.stepped(row(1))
    finished(callbacks)
    assert not callbacks.thread.is_alive()
