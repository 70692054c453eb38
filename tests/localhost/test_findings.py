from __future__ import annotations

from farflung.localhost.findings import lost_findings, opset_findings
from farflung.protocol.viewer import WorkerStatus


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


def test_lost_workers_do_not_count() -> None:
    assert list(opset_findings([worker("a", 1), worker("b", 3, state="lost")])) == []
