"""A device without memory costs a job, not the worker; one that fails for good costs the worker."""

from __future__ import annotations

import pytest
from tests.gpu import failing
from tests.gpu.conftest import Ask

pytestmark = pytest.mark.slow


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("op", "thread"), [("aten::addmm", "farflung-compute"), ("aten::empty", "farflung-codec")]
)
def test_a_job_that_fills_the_device_ends_in_one_line_and_the_next_one_runs(
    op: str, thread: str, there: Ask
) -> None:
    seen = there(failing.runs_out_of_memory, op, thread)
    assert seen.reason == (
        "fake:0 has no memory left for the job (Tried to allocate 2.00 GiB): offer less of it"
        " (farflung join --memory), or take smaller microbatches or more workers"
    )
    assert seen.left == 0 and seen.works


def test_a_library_without_memory_for_its_workspace_costs_the_job_only(there: Ask) -> None:
    seen = there(failing.runs_out_of_memory, "aten::addmm", "farflung-compute", "no-workspace")
    assert seen.reason.startswith(
        "fake:0 has no memory left for the job (CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"
    )
    assert seen.left == 0 and seen.works


@pytest.mark.parametrize(
    ("which", "says"), [("lost", "an illegal memory access was encountered"), ("cublas", "CUBLAS_STATUS")]
)
def test_a_device_that_fails_for_good_ends_the_thread_in_one_line(which: str, says: str, there: Ask) -> None:
    line = there(failing.fails_for_good, which)
    assert line.startswith("the device failed: CUDA error: ") and says in line
    assert line.endswith("; restart farflung join") and "\n" not in line
