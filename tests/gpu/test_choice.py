"""`--device` takes a usable GPU, and says in one line why one is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from farflung.errors import JobError
from farflung.localhost.forkserver import WORKER_MODULES
from farflung.runtime.frameworks import checked
from farflung.runtime.torch_backend.choice import Choice, Gpu, Machine, choose, local_devices

SMALL = Gpu("cuda:0", "NVIDIA T4", 10 * 10**9, 16 * 10**9)
LARGE = Gpu("cuda:1", "NVIDIA H100", 70 * 10**9, 80 * 10**9)
FULL = Gpu("cuda:0", "NVIDIA T4", 5 * 10**8, 16 * 10**9)
BARE = Machine("2.13.0+cpu", "")
TWO = Machine("2.13.0+cu126", "CUDA 12.6", (SMALL, LARGE), True)


def test_auto_takes_the_gpu_with_the_most_free_memory() -> None:
    assert choose("auto", TWO) == Choice("cuda:1", "NVIDIA H100", 70 * 10**9)


def test_a_gpu_that_is_named_is_taken() -> None:
    assert choose("cuda:0", TWO).name == "NVIDIA T4"
    assert choose("cpu", TWO) == Choice("cpu")


def test_auto_on_a_machine_without_a_gpu_says_nothing() -> None:
    assert choose("auto", BARE) == Choice("cpu")


def test_auto_says_which_wheel_the_gpu_needs() -> None:
    found = choose("auto", Machine("2.13.0+cpu", "", has_nvidia=True))
    assert found.device == "cpu"
    assert "pip install torch==2.13.0 --index-url" in found.remark


def test_auto_passes_over_a_gpu_that_others_fill() -> None:
    found = choose("auto", Machine("2.13.0", "CUDA 12.6", (FULL,), True))
    assert found.device == "cpu" and "0.5 of 16.0 GB free" in found.remark


def test_apple_silicon_has_its_gpu() -> None:
    assert choose("auto", Machine("2.13.0", "", has_mps=True)).device == "mps"


@pytest.mark.parametrize(
    ("wanted", "machine", "says"),
    [
        ("cuda", BARE, "PyTorch finds no GPU"),
        ("cuda", Machine("2.13.0+cpu", "", has_nvidia=True), "is built for CPUs"),
        ("cuda", Machine("2.13.0", "CUDA 12.6"), "finds no GPU: install its driver"),
        (
            "cuda",
            Machine("2.13.0", "CUDA 12.6", trouble="driver too old"),
            "too old: install or update",
        ),
        ("cuda:7", TWO, "this machine has cuda:0, cuda:1"),
        ("cuda:0", Machine("2.13.0", "CUDA 12.6", (FULL,)), "0.5 of 16.0 GB free on NVIDIA T4"),
        ("mps", BARE, "needs macOS"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(wanted: str, machine: Machine, says: str) -> None:
    with pytest.raises(JobError) as caught:
        choose(wanted, machine)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("wanted", ["tpu", "cuda:", "cuda:x", "cpu\n"])
def test_a_device_that_does_not_exist_is_refused(wanted: str) -> None:
    with pytest.raises(JobError, match="takes auto, cpu, cuda, cuda:N or mps"):
        checked("torch", None, wanted)


def test_a_device_is_chosen_for_pytorch_only() -> None:
    with pytest.raises(JobError, match="--device is for --backend torch"):
        checked("jax", None, "cuda")


@pytest.mark.parametrize(
    ("wanted", "workers", "gpus", "found"),
    [
        ("auto", 2, 0, ["cpu", "cpu"]),
        ("auto", 2, 2, ["cuda:0", "cuda:1"]),
        ("auto", 3, 2, ["cpu", "cpu", "cpu"]),
        ("cuda", 2, 3, ["cuda:0", "cuda:1"]),
        ("cpu", 1, 4, ["cpu"]),
    ],
)
def test_local_workers_get_a_gpu_each(wanted: str, workers: int, gpus: int, found: list[str]) -> None:
    assert local_devices(wanted, workers, gpus) == found


def test_two_workers_do_not_share_a_gpu() -> None:
    with pytest.raises(JobError, match="3 workers, 2 GPUs"):
        local_devices("cuda", 3, 2)


def test_what_a_fork_server_imports_does_not_begin_cuda() -> None:
    modules = ", ".join(WORKER_MODULES)
    code = (
        f"import {modules}, torch\n"
        "from farflung.runtime.torch_backend.choice import gpu_count\n"
        "gpu_count()\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
