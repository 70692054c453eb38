from __future__ import annotations

import pytest

from farflung.localhost.findings import fleet_findings, lost_findings, opset_findings
from farflung.protocol.viewer import JobStatus, Status, WorkerStatus


def worker(name: str, opset: int = 2, lacks: tuple[str, ...] = (), state: str = "ready") -> WorkerStatus:
    is_lost, there = state == "lost", state not in ("lost", "left")
    shown = "left" if is_lost else state
    common = ("cpu", "", "", 0.0, "", 0.0, "torch", opset, list(lacks))
    return WorkerStatus(name, shown, *common, connected=there, is_lost=is_lost)


def test_equal_workers_give_no_findings() -> None:
    assert list(opset_findings([])) == list(opset_findings([worker("a"), worker("b")])) == []


def test_findings_name_workers_with_older_opsets_and_missing_ops() -> None:
    lacks = tuple(f"aten.op{number}.default" for number in range(7))
    older, poorer = opset_findings([worker("a", 1), worker("b"), worker("c", lacks=lacks)])
    assert not older.ok and "a knows opset version 1, others 2" in older.found and "newer" in older.helps
    assert poorer.ok and poorer.found.startswith("c cannot run models with aten.op0.default")
    assert "aten.op4.default and 2 more" in poorer.found


def test_a_lost_worker_is_a_finding_and_one_that_left_is_not() -> None:
    (finding,) = lost_findings([worker("a"), worker("b", state="lost"), worker("c", state="left")])
    assert not finding.ok and finding.found == "b was lost, last seen 0:00 ago"
    assert "farflung join" in finding.helps


@pytest.mark.parametrize(
    ("workers", "found"),
    [
        ((), "no worker has joined yet"),
        (("lost",), "no worker is there: 1 worker has left or been lost"),
        (("lost", "left"), "no worker is there: 2 workers have left or been lost"),
        (("draining", "suspect"), "no worker can take a job: w0 is draining, w1 is suspect"),
    ],
)
def test_a_fleet_that_cannot_work_is_a_finding(workers: tuple[str, ...], found: str) -> None:
    shown = [worker(f"w{number}", state=state) for number, state in enumerate(workers)]
    (finding,) = fleet_findings(Status("0", 1.0, shown, [], [], {}, [], 0.0), "broker.example:7700")
    assert not finding.ok and finding.found == found
    assert "farflung join broker.example:7700" in finding.helps


def test_jobs_that_do_not_train_are_findings() -> None:
    why = "waiting for 1 more worker (have 1, the job needs 2)"
    jobs = [
        JobStatus("job-1", "gpt", "running", "", 1, 2, None, None, ["w0"]),
        JobStatus("job-2", "gpt", "queued", why, 0, 2, None, None, []),
        JobStatus("job-3", "gpt", "loading", "", 0, 2, None, None, [], waits_for=["c"]),
        JobStatus("job-4", "gpt", "failed", "", 0, 2, None, None, [], held=True),
    ]
    found = list(
        fleet_findings(Status("0", 1.0, [worker("w0")], jobs, [], {}, [], 0.0), "broker.example:7700")
    )
    assert [(one.ok, one.found) for one in found] == [
        (False, f"job-2 does not train: {why}"),
        (False, "job-3 does not train: waiting for c"),
    ]
    assert found[0].helps == "farflung attach job-2 follows it"
    assert found[1].helps.startswith("`farflung join` on its machine starts c again")


def test_lost_workers_do_not_count() -> None:
    assert list(opset_findings([worker("a", 1), worker("b", 3, state="lost")])) == []
