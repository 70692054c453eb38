"""A worker whose device does not come back, as real processes: PyTorch waits, and nothing interrupts it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.installations import in_fourth_step, installation
from tests.support.processes import Machines, quick_machines, train

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.faults]
SLOW = "torch.futures.Future().wait()"
"""It never returns from PyTorch, where the formula says microseconds."""


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Machines]:
    with quick_machines(tmp_path) as place:
        yield place


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_worker_whose_pass_does_not_end_leaves_its_job_and_offers_its_device_anew(
    on: Machines, tmp_path: Path
) -> None:
    token = on.token("worker", "--uses", "2")
    slow = on.worker("slow", token, installation(tmp_path / "sources", in_fourth_step(SLOW)))
    good = on.worker("good", token)
    for worker in (slow, good):
        worker.says("idle in the backup pool")
    run = train(on, "stopped", "--broker", on.address, "--on", "good,slow")
    reason = run.ends_an_attempt()
    run.stops()
    assert re.search(
        r"worker slow was lost at step 4: .*the forward pass of microbatch 1 through segment \d has taken "
        r"over 15 s, [0-9.e-]+ s were expected, and only the end of its process ends an op",
        reason,
    )
    assert len(run.rows) == 3

    slow.says("segment", "has taken over 15 s", "restarting")
    on.idle("good", "slow")
    again = train(on, "again", "--broker", on.address, "--on", "good,slow", "--steps", "3")
    assert again.command.code() == 0, again.command.err
    for worker in (slow, good):
        worker.stop()


GREEDY = "torch.ones(2**31)"
"""8 GB, of which no estimate knows."""


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process may allocate")
def test_an_op_that_takes_more_memory_than_its_worker_offers_does_not_get_it(
    on: Machines, tmp_path: Path
) -> None:
    token = on.token("worker", "--uses", "2")
    sources = installation(tmp_path / "sources", in_fourth_step(GREEDY))
    greedy = on.worker("greedy", token, sources, "--memory", "1")
    good = on.worker("good", token)
    for worker in (greedy, good):
        worker.says("idle in the backup pool")
    reason = train(on, "failed", "--broker", on.address, "--on", "good,greedy").fails()
    assert re.search(r"no memory left for the job \(.*you tried to allocate 8589934592 bytes", reason), reason
    on.idle("good", "greedy")
    for worker in (greedy, good):
        worker.stop()
