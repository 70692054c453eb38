from __future__ import annotations

from farflung.local.findings import opset_findings
from farflung.protocol.viewer import WorkerStatus


def worker(name: str, opset: int = 2, lacks: tuple[str, ...] = (), state: str = "idle") -> WorkerStatus:
    return WorkerStatus(name, state, "cpu", "", "", 0.0, "", 0.0, "torch", opset, list(lacks))


def test_a_fleet_of_equals_has_nothing_to_say() -> None:
    assert list(opset_findings([])) == list(opset_findings([worker("a"), worker("b")])) == []


def test_an_older_worker_and_one_that_lacks_ops_are_named() -> None:
    lacks = tuple(f"aten.op{number}.default" for number in range(7))
    older, poorer = opset_findings([worker("a", 1), worker("b"), worker("c", lacks=lacks)])
    assert not older.ok and "a knows opset version 1, others 2" in older.found and "newer" in older.helps
    assert poorer.ok and poorer.found.startswith("c takes no model with aten.op0.default")
    assert "aten.op4.default and 2 more" in poorer.found


def test_who_is_gone_does_not_count() -> None:
    assert list(opset_findings([worker("a", 1), worker("b", 3, state="lost")])) == []
