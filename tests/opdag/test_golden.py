"""Documents as every released format wrote them: they stay readable, and mean what they meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.opdag.golden.running import numbers_of

from farflung.opdag import wire

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("v*/*.opdag"))


def test_every_format_has_its_files() -> None:
    formats = {f"v{number}" for number in range(1, wire.FORMAT_VERSION + 1)}
    assert {path.parent.name for path in FILES} == formats
    for folder in formats:
        expected = json.loads((GOLDEN / folder / "expected.json").read_text())
        assert sorted(expected) == sorted(path.name for path in FILES if path.parent.name == folder)
        assert len(expected) >= 6


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_old_document_makes_what_it_made(path: Path) -> None:
    expected = json.loads((path.parent / "expected.json").read_text())[path.name]
    found = numbers_of(path.read_bytes(), path.name.endswith(".segment.opdag"))
    assert found.keys() == expected.keys()
    for pass_, numbers in expected.items():
        assert found[pass_] == pytest.approx(numbers, rel=1e-5, abs=1e-7), pass_


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_old_document_is_written_as_todays(path: Path) -> None:
    load = wire.load_segment if path.name.endswith(".segment.opdag") else wire.load_graph
    document = load(path.read_bytes(), 2)
    assert document.version == wire.FORMAT_VERSION
    assert load(wire.dump(document), 2) == document
