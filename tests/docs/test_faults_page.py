"""docs/faults.md: every promise that is said to hold names a test, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\|([^|]+)\|([^|]+)\|([^|]*)\|$", PAGE, re.MULTILINE)
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_a_promise_that_holds_names_a_test() -> None:
    holding = [(what, tests) for what, holds, tests in ROWS if holds.strip() == "yes"]
    assert len(holding) > 5
    assert not [what for what, tests in holding if "::" not in tests]


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 8
    assert not [name for path, name in NAMED if f"def {name}(" not in (ROOT / path).read_text()]
