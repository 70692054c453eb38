"""What benchmarks may import."""

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_no_benchmark_imports_a_test() -> None:
    files = list(BENCHMARKS.rglob("*.py"))
    assert files
    importing = [
        file.name for file in files if re.search(r"^\s*(from|import) tests\b", file.read_text(), re.M)
    ]
    assert not importing
