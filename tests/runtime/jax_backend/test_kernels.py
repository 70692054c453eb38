"""The kernel digest of JAX repeats in every process with as many threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from farflung.runtime.jax_backend import kernels
from farflung.runtime.jax_backend.verify import verify_segment
from farflung.runtime.kernels import SAMPLES, sample_segment

PROGRAM = """
from pathlib import Path
from farflung.runtime.jax_backend.backend import JaxBackend

print(JaxBackend(Path({cache!r})).kernel_digest())
"""


def elsewhere(threads: int, cache: str) -> str:
    program = PROGRAM.format(cache=cache)
    environment = {**os.environ, "NPROC": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


@pytest.mark.full
@pytest.mark.slow
def test_processes_with_the_same_number_of_threads_have_one_digest(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whether they compile the sample or find it compiled."""
    cache = str(tmp_path_factory.mktemp("xla"))
    first = elsewhere(1, cache)
    assert len(first) == 32 and elsewhere(1, cache) == first
    assert elsewhere(2, cache) != first


def test_a_worker_on_jax_could_run_the_sample() -> None:
    verify_segment(sample_segment(attention=False), SAMPLES)


def test_every_result_of_the_sample_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost in zeros or equal to another."""
    monkeypatch.setattr(kernels, "digest_of", lambda device, results: [bytes(data) for data in results])
    results = kernels.kernel_digest()
    assert len(results) == len(set(results)) == 1 + len(sample_segment(False).owned) + 3
    assert all(any(data) for data in results)
