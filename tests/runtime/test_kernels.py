"""A device's kernel digest repeats in every process, and says on how many threads it was made."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from farflung.opdag import wire
from farflung.runtime.backend import EMULATED
from farflung.runtime.emulated.backend import EmulatedBackend
from farflung.runtime.kernels import SAMPLES, digest_of, sample_segment
from farflung.runtime.torch_backend import kernels
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.runtime.torch_backend.verify import verify_segment
from farflung.worker.measuring import describe_device

PROGRAM = """
import sys
from farflung.runtime.torch_backend.backend import TorchBackend

before = set(sys.modules)
print(TorchBackend().kernel_digest(), "sympy" in set(sys.modules) - before)
"""


def elsewhere(threads: int) -> tuple[str, str]:
    """The digest of another process, and whether it imported torch's symbolic shapes for it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
    )
    digest, imported = done.stdout.split()
    return digest, imported


@pytest.mark.full
@pytest.mark.slow
def test_processes_with_the_same_number_of_threads_have_one_digest() -> None:
    one, two = elsewhere(1), elsewhere(2)
    assert one == elsewhere(1) != two
    assert one[1] == two[1] == "False"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert TorchBackend().kernel_digest() == one[0]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("attention", [False, True])
def test_the_sample_is_a_segment_that_a_worker_would_run(attention: bool) -> None:
    segment = wire.load_segment(wire.dump(sample_segment(attention)), SAMPLES)
    verify_segment(segment, SAMPLES)
    ops = {node.op for node in segment.nodes}
    assert ("aten.scaled_dot_product_attention.default" in ops) == attention


def test_every_gradient_of_the_sample_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost in zeros or equal to another, and each parameter moves."""
    monkeypatch.setattr(kernels, "digest_of", lambda device, results: [bytes(data) for data in results])
    results = kernels.kernel_digest()
    assert len(results) == len(set(results)) == 1 + 2 * len(sample_segment(True).owned)
    assert all(any(data) for data in results)


def test_one_bit_of_one_result_changes_the_digest() -> None:
    results = [bytes(range(9)), bytes(4)]
    digest = digest_of("torch, 1 threads", map(memoryview, results))
    assert len(digest) == 32 and digest == digest_of("torch, 1 threads", map(memoryview, results))
    assert digest != digest_of("torch, 2 threads", map(memoryview, results))
    assert digest != digest_of("torch, 1 threads", map(memoryview, [results[0], b"\0\0\0\1"]))


def test_a_worker_says_the_digest_of_its_device() -> None:
    assert describe_device(TorchBackend(), 10**9).kernels == TorchBackend().kernel_digest()
    assert describe_device(EmulatedBackend(1.0), 10**9).kernels == EMULATED
