"""Workers that lack ops, as real processes: they are left out of a plan, and everybody is told why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.end_to_end.installations import BACKEND, TABLE, changed, installation, lacking, newer
from tests.support.opset_tables import NEW_OP, NEWER
from tests.support.processes import JOB, Command, Machines, Run, machines, train

import farflung
from farflung.opdag import opset

pytestmark = [pytest.mark.processes, pytest.mark.slow]

RELU = "aten.relu.default"
OURS = Path(farflung.__file__).parent.parent


class Place(Machines):
    """Where one worker lacks an op."""

    poor: Command


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Place]:
    """A newer broker and submitter, a worker that has all ops, an older one, and one without `relu`."""
    with machines(tmp_path, Place) as place:
        (tmp_path / "newer.py").write_text(JOB.replace("torch.tanh", "torch.sinc"))
        (tmp_path / "relu.py").write_text(JOB.replace("torch.tanh", "torch.relu"))
        place.sources = installation(tmp_path / "sources" / "newer", {TABLE: newer})
        poorer = installation(tmp_path / "sources" / "poorer", {TABLE: newer, BACKEND: lacking(RELU)})
        broker = place.broker()
        token = place.token("worker", "--uses", "3")
        joined = [place.worker("able", token), place.worker("older", token, OURS)]
        place.poor = place.worker("poor", token, poorer)
        for worker in (*joined, place.poor):
            worker.says("idle in the backup pool")
        place.document("desk", "status", "--broker", place.address, "--token", place.token("submitter"))
        yield place
        for worker in (*joined, place.poor):
            worker.stop()
        broker.stop()


def trained(on: Place, job: str, name: str, *arguments: str) -> Run:
    return train(on, name, "--broker", on.address, "--steps", "2", *arguments, job=job)


def unable(run: Run) -> Any:
    """Whom the `planned` event of a run leaves out, and why."""
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "planned"]
    return event["unable"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_who_lacks_an_op_is_left_out_and_the_job_runs_on_the_others(on: Place) -> None:
    run = trained(on, "newer.py", "newer")
    assert run.command.code() == 0, run.command.err
    assert run.workers and set(run.workers) <= {"able", "poor"}
    why = f"its opset version {NEWER - 1} lacks {NEW_OP} (version {NEWER}): install a newer farflung there"
    assert unable(run) == {"older": why}
    assert f"left out: older: {why}" in run.command.err

    run = trained(on, "relu.py", "relu")
    assert run.command.code() == 0, run.command.err
    assert run.workers and set(run.workers) <= {"able", "older"}
    assert f"left out: poor: its backend (torch {torch.__version__}) has no {RELU}" in run.command.err

    shown = {worker["worker"]: (worker["opset"], worker["lacks"]) for worker in on.status()["workers"]}
    assert shown == {"able": (NEWER, []), "older": (NEWER - 1, []), "poor": (NEWER, [RELU])}
    status = on.start("desk", "status")
    assert status.code() == 0 and f"older knows opset version {NEWER - 1}, others {NEWER}" in status.out

    waiting = trained(on, "relu.py", "waiting", "--on", "poor")
    waiting.command.says("waiting for poor (have 0, the job needs 1; poor: its backend", f"has no {RELU}")
    on.poor.stop()
    on.poor = on.worker("poor")
    assert waiting.command.code() == 0, waiting.command.err
    assert set(waiting.workers) == {"poor"}


@pytest.mark.full
def test_a_local_fleet_that_lacks_an_op_fails_at_once(tmp_path: Path) -> None:
    """Nobody else will join it."""
    with machines(tmp_path) as place:
        (tmp_path / "relu.py").write_text(JOB.replace("torch.tanh", "torch.relu"))
        poorer = installation(tmp_path / "sources" / "poorer", {BACKEND: lacking(RELU)})
        run = place.start("desk", "train", "relu.py", "--out", "run", "--local", "2", sources=poorer)
        assert run.code() == 1
        assert "no other workers will join here: waiting for" in run.err and f"has no {RELU}" in run.err


@pytest.mark.full
def test_another_table_of_the_same_version_is_refused_with_both_hashes(tmp_path: Path) -> None:
    with machines(tmp_path) as place:
        broker = place.broker()
        other = installation(tmp_path / "sources" / "changed", {TABLE: changed})
        worker = place.worker("odd", place.token("worker"), other)
        assert worker.code() not in (0, 130)
        (line,) = worker.errors
        assert opset.schema_hash(opset.version()) in line and "has the schema hash" in line
        assert "somebody changed the table, install the same farflung on both" in line
        broker.stop()
