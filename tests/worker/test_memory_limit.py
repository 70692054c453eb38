"""The kernel's limit behind the estimate: an allocation beyond it fails, and the process goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farflung.worker import memory_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all memory on Linux only")

OVERSHOOT = """
import torch

from farflung.errors import JobError
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker import memory_limit

memory_limit.ROOM_BYTES = memory_limit._THREADS = 0
backend, offered = TorchBackend(), 64 * 2**20
assert memory_limit.limit_memory(offered) is not None
kept = torch.ones(offered // 8)
try:
    torch.ones(offered)
except RuntimeError as error:
    found = backend.failure(error)
    assert isinstance(found, JobError), error
    print(found)
print(int(torch.ones(1000).sum() + kept.sum()))
"""
UNFOLDED = """
from pathlib import Path

import torch

torch.backends.mkldnn.enabled = False  # the kernel that unfolds: 125 times the operand
from farflung.runtime.torch_backend.backend import TorchBackend
from farflung.worker import memory_limit

memory_limit.ROOM_BYTES = memory_limit._THREADS = 0
backend = TorchBackend()
memory_limit.limit_memory(128 * 2**20)
try:
    torch.nn.functional.conv3d(torch.ones(1, 8, 64, 64, 64), torch.ones(8, 8, 5, 5, 5), padding=2)
except (RuntimeError, MemoryError) as error:
    print(backend.failure(error))
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
print(int(peak.split()[1]) // 1024)
"""


def run(source: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.splitlines()


def test_an_allocation_beyond_the_limit_fails_in_one_line_and_the_next_one_works() -> None:
    said, total = run(OVERSHOOT)
    assert said.startswith("cpu has no memory left for the job (") and "268435456 bytes" in said, said
    assert total == str(1000 + 8 * 2**20)


def test_a_kernel_that_takes_more_than_was_estimated_does_not_get_it() -> None:
    said, peak_mb = run(UNFOLDED)
    assert "no memory left for the job" in said, said
    assert int(peak_mb) < 900, "the unfolded operand has 1,049 MB"


def test_a_lower_limit_of_the_owner_stays(tmp_path: Path) -> None:
    source = """
import resource
from farflung.worker.memory_limit import limit_memory
resource.setrlimit(resource.RLIMIT_DATA, (400 * 2**20, 500 * 2**20))
print(limit_memory(2**30), resource.getrlimit(resource.RLIMIT_DATA)[0] // 2**20)
"""
    assert run(source) == ["None 400"]


def test_without_linux_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory_limit.limit_memory(2**30) is None
