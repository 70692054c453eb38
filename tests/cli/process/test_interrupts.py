"""Ctrl-C is not lost where a library swallows it."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from farflung.cli.process.interrupts import suppress_torch_output


def test_a_swallowed_ctrl_c_comes_at_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    after_it = []
    with pytest.raises(KeyboardInterrupt), suppress_torch_output():
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)
        after_it.append("went on")
    assert after_it and signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_nothing_is_raised() -> None:
    before = signal.getsignal(signal.SIGINT)
    with suppress_torch_output():
        pass
    assert signal.getsignal(signal.SIGINT) is before
