"""A worker whose device fails for good in mid-step, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.installations import in_fourth_step, installation
from tests.support.processes import Machines, quick_machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]
FAILING = 'raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")'


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machines]:
    with quick_machines(tmp_path) as place:
        yield place


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_worker_ends_in_one_line_and_its_job_goes_on(on: Machines, tmp_path: Path) -> None:
    token = on.token("worker", "--uses", "3")
    sources = installation(tmp_path / "sources", in_fourth_step(FAILING))
    failing, good, other = (
        on.worker("failing", token, sources),
        on.worker("good", token),
        on.worker("other", token),
    )
    for worker in (failing, good, other):
        worker.says("idle in the backup pool")
    run = train(on, "goes-on", "--broker", on.address, "--on", "good,failing", "--steps", "6")
    assert "the device failed" in run.ends_an_attempt()
    assert failing.code() == 1
    line = "the device failed: CUDA error: an illegal memory access was encountered; restart farflung join"
    assert line in failing.err and "Traceback" not in failing.err
    assert run.command.code() == 0, run.command.err
    assert {row["step"] for row in run.rows} == set(range(1, 7))  # those since the newest version came twice
    for worker in (good, other):
        worker.stop()
