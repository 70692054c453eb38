"""Emulated workers as processes: the messages of a real run, no framework, no numbers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.localhost.jobs import Chain, Vectors, job

from farflung.client.capture.check import capture_shapes
from farflung.client.capture.prepared import prepare, prepare_emulated
from farflung.client.output.progress import Observer
from farflung.client.output.records import Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.run.submitter import Submitter
from farflung.errors import CaptureError
from farflung.localhost.fleet import LocalFleet
from farflung.opdag import wire
from farflung.protocol.messages import Planned

pytestmark = pytest.mark.processes

WORKERS, STEPS, WIDTH = 3, 5, 1024  # so wide that pings weigh little beside values
RUNG = "int8/eden2"


class Impatient(Observer):
    """Remembers what was waited for, and ends a run that waits."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.planned_for: list[str] = []
        self.submitter: Submitter | None = None

    def waiting(self, words: str) -> None:
        self.words.append(words)
        if self.submitter is not None and "waiting for" in words:
            self.submitter.stop("seen enough")

    def planned(self, planned: Planned) -> None:
        self.planned_for = planned.plan.workers()


async def train(
    fleet: LocalFleet, path: Path, emulated: bool, observer: Observer | None = None, **changes: Any
) -> Summary:
    data = Vectors(width=WIDTH)
    fields: dict[str, Any] = {"model": Chain(width=WIDTH), "validation": data, "validation_batches": 2}
    declared = job(steps=STEPS, data=data, **{**fields, **changes})
    if emulated:
        prepared = prepare_emulated(declared, wire.dump(capture_shapes(declared).graph))
    else:
        prepared = prepare(declared, WORKERS)
    run = RunFolder.create(path)
    submitter = Submitter(prepared, fleet.identity, run, observer or Observer(), WORKERS)
    if isinstance(observer, Impatient):
        observer.submitter = submitter
    try:
        return await submitter.run()
    finally:
        run.close()


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of steps; those of evaluations have no loss of training."""
    found = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if "loss" in row]


def carried(path: Path) -> int:
    return int(json.loads((path / "summary.json").read_text())["bytes_on_wire"])


def ratio(path: Path) -> float:
    return float(json.loads((path / "summary.json").read_text())["ratio"])


def has_torch(process_id: int) -> bool:
    """Whether a process has torch in memory."""
    return "libtorch" in Path(f"/proc/{process_id}/maps").read_text()


async def maps(fleet: LocalFleet) -> list[bool]:
    """For each worker whether its process has torch in memory."""
    return [has_torch(await child.process_id()) for child in fleet.workers]


@pytest.mark.full
def test_emulated_workers_send_what_real_ones_send(temporary: Path, tmp_path: Path) -> None:
    async def run() -> None:
        async with LocalFleet(WORKERS, tmp_path / "logs") as real:
            await train(real, tmp_path / "real", False)
            await train(real, tmp_path / "real-coded", False, codec=RUNG)
            assert await maps(real) == [True] * WORKERS
        async with LocalFleet(WORKERS, tmp_path / "logs", emulated_tflops=1e-3) as fleet:
            with torch.device("meta"):
                model = Chain(width=WIDTH)
            summary = await train(fleet, tmp_path / "emulated", True, model=model)
            await train(fleet, tmp_path / "emulated-coded", True, model=model, codec=RUNG)
            assert await maps(fleet) == [False] * WORKERS
            waits = Impatient()
            refused = await train(fleet, tmp_path / "mixed", False, waits)
        assert (summary.state, summary.reason, summary.steps) == ("done", "", STEPS)
        assert summary.emulated and summary.train_loss is None and summary.validation_loss is None
        assert summary.weights_step is None and summary.loading_bytes < 5_000
        assert refused.state == "cancelled" and not waits.planned_for
        assert f"waiting for {WORKERS} more workers (have 0, the job needs {WORKERS})" in waits.words

    asyncio.run(run())
    # Beside the values only pacing and heartbeats travel, as often as time makes them.
    for kind in ("", "-coded"):
        real_bytes = carried(tmp_path / f"real{kind}")
        assert carried(tmp_path / f"emulated{kind}") == pytest.approx(real_bytes, rel=0.02)
    assert ratio(tmp_path / "emulated-coded") == pytest.approx(ratio(tmp_path / "real-coded"), rel=0.05)
    assert ratio(tmp_path / "real-coded") > 2 * ratio(tmp_path / "real")
    emulated, real = rows(tmp_path / "emulated"), rows(tmp_path / "real")
    assert [row["step"] for row in emulated] == list(range(1, STEPS + 1))
    assert all(row["loss"] is None and row["gradient_norm"] is None and row["emulated"] for row in emulated)
    assert not any(row["emulated"] for row in real)
    assert not (tmp_path / "emulated" / "model.safetensors").exists()


def test_a_model_without_data_is_for_emulated_runs_only() -> None:
    with torch.device("meta"):
        model = Chain()
    with pytest.raises(CaptureError, match="only an emulated run"):
        prepare(job(model=model))
