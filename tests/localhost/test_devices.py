"""What a machine offers to workers."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from farflung.localhost.devices import memory_here


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"memory.max": "3000000\n"}, 3_000_000),
        ("0::/", {"memory.max": "max\n"}, None),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "2000000"}, 2_000_000),
        ("4:cpu,memory:/host/c1", {"memory/memory.limit_in_bytes": "1000000"}, 1_000_000),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("3:cpuset:/", {"memory.max": "5"}, None),
        ("nonsense", {}, None),
    ],
)
def test_a_container_has_the_memory_of_its_limit(
    tmp_path: Path, line: str, files: dict[str, str], expected: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "mine").write_text(f"9:name=systemd:/\n{line}\n")
    whole = psutil.virtual_memory().total
    assert memory_here(tmp_path, tmp_path / "mine") == (whole if expected is None else expected)
    assert memory_here(tmp_path, tmp_path / "missing") == whole
