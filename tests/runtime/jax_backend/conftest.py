"""Compiling takes most of the time here: half as much where XLA does not optimise, and each segment once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # read when JAX first computes

from farflung.opdag import wire
from farflung.runtime.jax_backend import segment as segments
from farflung.runtime.jax_backend.background_compile import CancelToken
from farflung.runtime.jax_backend.compiled import EvaluationFunction, TrainingFunctions

KEPT = 16


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """Tests make runners of the same few segments; a worker keeps nothing of a job that is over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "TrainingFunctions", _once(TrainingFunctions))
        patch.setattr(segments, "EvaluationFunction", _once(EvaluationFunction))
        yield


@pytest.fixture
def compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a worker."""
    monkeypatch.setattr(segments, "TrainingFunctions", TrainingFunctions)
    monkeypatch.setattr(segments, "EvaluationFunction", EvaluationFunction)


def _once(make: Any) -> Any:
    @lru_cache(KEPT)
    def made(program: bytes, batch: int) -> Any:
        return make(wire.load_segment(program, batch), batch, CancelToken())

    return lambda segment, batch, wanted: made(wire.dump(segment), batch)
