"""How much a run evaluates on lines of known speed, by default and when the user says it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.localhost.jobs import Vectors, job

from farflung.client.capture.prepared import prepare
from farflung.client.output.progress import Observer
from farflung.client.output.records import Summary
from farflung.client.output.run_folder import RunFolder
from farflung.client.run import home_losses
from farflung.client.run.submitter import Submitter
from farflung.localhost.fleet import LocalFleet
from farflung.plans import CodecWishes, Topology, Wishes
from farflung.plans.topology import WorkerSpec
from farflung.schedule import Unit

pytestmark = pytest.mark.processes

STEPS = 4


def slow_lines() -> Topology:
    """The two workers of the fleet on lines over which a microbatch takes seconds."""
    specs = tuple(WorkerSpec(name, "", 1.0, 1.0) for name in ("worker-0", "worker-1"))
    latency, rate = ((0.0, 900.0), (900.0, 0.0)), ((0.0, 0.05), (0.05, 0.0))
    return Topology(specs, latency, rate)


class Evaluations(Observer):
    """What was evaluated: the step, the microbatches and whether links were dense."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bool]] = []

    def working(self, unit: Unit, microbatches: int) -> None:
        if unit.evaluates and not microbatches:
            self.seen.append((unit.step, unit.microbatches, unit.plain))


Run = Callable[..., tuple[Summary, list[tuple[int, int, bool]]]]


@pytest.fixture(scope="module")
def run(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a job of these changes on a shared fleet of two workers."""
    prepared = prepare(job())
    with asyncio.Runner() as runner:
        fleet = LocalFleet(2, tmp_path_factory.mktemp("fleet"))

        def run(path: Path, codec: str = "dense", **changes: Any) -> tuple[Summary, list[Any]]:
            declared = job(model=prepared.job.model, steps=STEPS, validation=Vectors(), **changes)
            observer, folder = Evaluations(), RunFolder.create(path)
            wishes = Wishes(topology=slow_lines(), codecs=CodecWishes(codec))
            ready = replace(prepared, job=declared)
            submitter = Submitter(ready, fleet.identity, folder, observer, 2, wishes=wishes, closed=True)
            summary = runner.run(submitter.run())
            folder.close()
            assert (summary.state, summary.reason) == ("done", "")
            return summary, observer.seen

        runner.run(fleet.__aenter__())
        yield run
        runner.run(fleet.__aexit__(None, None, None))


def losses(path: Path) -> list[float]:
    found = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in found if "loss" in row]


@pytest.mark.full
def test_by_default_few_microbatches_cross_slow_lines_and_steps_are_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_losses, "SHARE_OF_RUN", 100.0)  # however slow the machine is
    few, seen = run(tmp_path / "few")
    assert seen == [(0, 1, False), (STEPS, 1, False)] and few.validation_microbatches == 1
    assert few.home_losses is not None and few.home_losses.initial is not None
    assert (few.home_losses.microbatches, few.home_losses.whole) == (64, 100)
    asked, seen = run(tmp_path / "asked", validation_batches=64)
    assert seen == [(0, 64, False), (STEPS, 64, False)] and asked.home_losses is None
    assert losses(tmp_path / "few") == losses(tmp_path / "asked")
    # What this machine found on its own is what the fleet finds on the same microbatches.
    assert few.home_losses.initial == pytest.approx(asked.initial_validation_loss, rel=1e-6)
    assert few.home_losses.final == pytest.approx(asked.validation_loss, rel=1e-6)


@pytest.mark.full
def test_what_a_user_says_is_evaluated(run: Run, tmp_path: Path) -> None:
    summary, seen = run(tmp_path / "run", validation_batches=3, validate_every=2)
    assert seen == [(0, 3, False), (2, 3, False), (STEPS, 3, False)]
    assert summary.validation_microbatches == 3 and summary.home_losses is None
    _, seen = run(tmp_path / "all", validation_batches=None)
    assert seen == [(0, 100, False), (STEPS, 100, False)]


@pytest.mark.full
def test_where_codecs_are_chosen_a_short_run_is_evaluated_once_and_dense(run: Run, tmp_path: Path) -> None:
    summary, seen = run(tmp_path / "short", codec="auto:int8")
    assert seen == [(STEPS, 1, True)]
    assert summary.initial_validation_loss == summary.validation_loss is not None
    _, seen = run(tmp_path / "every", codec="auto:int8", validate_every=2)
    twice = [(step, 1, plain) for step in (0, 2, STEPS) for plain in (False, True)]
    assert seen == twice
    _, seen = run(tmp_path / "asked", codec="auto:int8", validation_batches=2)
    assert seen == [(step, 2, plain) for step in (0, STEPS) for plain in (False, True)]
