"""`make models`: rows that are measured, a page whose tables are filled in."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.model_backends import on_torch, without_dropout
from benchmarks.model_page import filled, notes, table
from benchmarks.model_table import rows
from benchmarks.zoo import CASES, MODELS, case
from benchmarks.zoo.side_by_side import captured

from farflung.errors import GraphError
from farflung.runtime.parity.eager import random_numbers

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "models.md"


def test_a_row_is_measured() -> None:
    (row,) = rows([case("chain")], {"torch": on_torch})
    assert (row.nodes, row.ops, row.parameters) == (11, 3, 5 * (16 * 16 + 16))
    assert row.size == "as tested"
    assert row.differences["torch"] == 0.0
    assert 0 < row.compressed_bytes < row.ir_bytes
    assert row.cut_bytes == 3 * 2 * 16 * 4  # three cuts, there and back, of 16 floats


def test_a_backend_that_refuses_a_model_says_why() -> None:
    def refuse(*_: object) -> float:
        raise GraphError("has no sine")

    (row,) = rows([case("chain")], {"torch": on_torch, "abacus": refuse})
    assert row.differences["abacus"] is None
    assert notes(row)[-1] == "* `chain` on abacus: has no sine"
    assert table([row]).splitlines()[-1].endswith("| 0 | 0 | - |")


def test_without_dropout_nothing_is_drawn() -> None:
    _, graph = captured(case("gpt2-fused-dropout"), 2)
    assert random_numbers(graph)
    assert not random_numbers(without_dropout(graph))


def test_only_what_stands_between_marks_is_replaced() -> None:
    page = "above\n<!-- made: a -->\nold\n<!-- end -->\nbetween\n<!-- made: b -->\n<!-- end -->\nbelow\n"
    assert filled(page, {"a": "new", "b": "more"}) == (
        "above\n<!-- made: a -->\nnew\n<!-- end -->\nbetween\n<!-- made: b -->\nmore\n<!-- end -->\nbelow\n"
    )
    with pytest.raises(ValueError, match="made: c"):
        filled(page, {"c": ""})


def test_the_page_shows_every_model() -> None:
    shown = PAGE.read_text()
    missing = [entry.name for entry in (*MODELS, *CASES) if f"| `{entry.name}` |" not in shown]
    assert not missing, f"run `make models`: {missing} are not on {PAGE.name}"
