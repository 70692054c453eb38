"""Each evaluation has a row in `metrics.jsonl`, also of a job without metrics."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import msgspec
import pytest
from tests.client.output.test_run_metrics import done, job

from farflung.client.output.history import effective_rows
from farflung.client.output.progress import Observer
from farflung.client.output.recorder import Recorder
from farflung.client.output.run_folder import METRICS, RunFolder
from farflung.protocol.messages import Accepted


@pytest.mark.parametrize("emulated", [False, True])
def test_an_evaluation_has_a_row_beside_those_of_steps(tmp_path: Path, emulated: bool) -> None:
    """None on emulated devices, which compute no loss."""

    async def trained() -> None:
        recorder = Recorder(job(), RunFolder.create(tmp_path / "run"), Observer(), emulated)
        for unit, loss in enumerate((9.0, 8.0, 7.0, 6.0)):
            await recorder.unit_done(done(unit, loss, 10), 10)

    asyncio.run(trained())
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    times = [row.pop("at") for row in rows]
    assert times == sorted(times) and time.time() - 3600 < times[0] <= time.time()
    evaluations = [row for row in rows if "loss" not in row]
    first = {"step": 0, "validation_loss": 9.0, "metrics": {}, "attempt": 1, "of_first_replica": False}
    assert evaluations[:1] == ([] if emulated else [first])
    assert len(evaluations) == (0 if emulated else 2)
    assert [row.step for row in effective_rows(tmp_path / "run")] == [1, 2]


def test_the_metrics_of_a_missed_evaluation_are_means_over_the_microbatches_that_it_took(
    tmp_path: Path,
) -> None:
    async def returned() -> None:
        asked = job(metrics={"accuracy": lambda outputs, batch: outputs})
        *_, last = asked.training().units()
        first, values = last.number, {"accuracy": [7]}
        recorder = Recorder(asked, RunFolder.create(tmp_path / "run"), Observer(), first=first, values=values)
        await recorder.accepted(Accepted("job-1", "running", validation_microbatches=2))
        missed = msgspec.structs.replace(done(first, 6.0, 10), metrics={7: 1.0})
        await recorder.unit_done(missed, None)
        assert recorder.metrics.validation_metrics == {"accuracy": 0.5}

    asyncio.run(returned())
