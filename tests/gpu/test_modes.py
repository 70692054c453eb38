"""A job is fast on GPUs, or repeats bit for bit if it says so; a plan says which."""

from __future__ import annotations

import pytest
from tests.gpu import modes
from tests.gpu.conftest import Ask

from farflung.planner.notes import mode_notes

KINDS = {"a": "cpu", "b": "cuda", "c": "emulated"}


@pytest.mark.slow
def test_a_deterministic_job_has_repeatable_kernels_and_no_tf32(there: Ask) -> None:
    fast, deterministic, compared = there(modes.of_both)
    assert fast == (False, True, True, True)
    assert deterministic == compared == (True, False, False, False)


def test_a_plan_says_how_its_gpus_compute() -> None:
    (fast,), (deterministic,) = (mode_notes("abc", KINDS, chosen) for chosen in (False, True))
    assert fast.startswith("b: the fastest kernels")
    assert deterministic.startswith("b: deterministic kernels without TF32")


def test_a_plan_of_cpus_has_no_such_note() -> None:
    assert mode_notes("ac", KINDS, False) == []
