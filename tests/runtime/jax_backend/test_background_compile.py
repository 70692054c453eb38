"""What is made meanwhile: awaited, ended between two parts, and never longer than somebody wants it."""

from __future__ import annotations

import gc
import threading

import pytest

from farflung.runtime.jax_backend.background_compile import BackgroundBuild, Cancelled, CancelToken

WAIT_SECONDS = 60.0


class Work:
    """Two parts, the first of which lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.second = False

    def __call__(self, wanted: CancelToken) -> int:
        try:
            self.begun.set()
            assert self.go.wait(WAIT_SECONDS)
            wanted.check()
            self.second = True
            return 7
        finally:
            self.over.set()


def test_get_waits_for_the_result() -> None:
    work = Work()
    later = BackgroundBuild(work)
    work.go.set()
    assert later.get() == 7
    later.close()
    assert later.get() == 7


def test_an_error_is_raised_by_get() -> None:
    def fail(wanted: CancelToken) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        BackgroundBuild(fail).get()


def test_closing_waits_for_the_part_under_way_and_begins_no_other() -> None:
    work = Work()
    later = BackgroundBuild(work)
    assert work.begun.wait(WAIT_SECONDS)
    closing = threading.Thread(target=later.close)
    closing.start()
    assert later._wanted._over.wait(WAIT_SECONDS)
    assert closing.is_alive()
    work.go.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive() and not work.second
    with pytest.raises(Cancelled):
        later.get()


def test_a_forgotten_build_goes_no_further() -> None:
    work = Work()
    later = BackgroundBuild(work)
    assert work.begun.wait(WAIT_SECONDS)
    del later
    gc.collect()
    work.go.set()
    assert work.over.wait(WAIT_SECONDS) and not work.second
