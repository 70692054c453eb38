"""How tests are spread over processes: `make test` runs two, one for each core of a small machine."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

LABS = (
    "lab/",
    "end_to_end/test_links.py",
    "end_to_end/test_paths.py",
    "end_to_end/test_survey.py",
    "benchmarks/test_wan.py",
    "cli/test_lab.py",
)
"""Where tests make labs: one lab at a time, so that they neither slow each other down nor see one another."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs all labs, which take longest and so begin first; files are never divided."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("labs" if _makes_labs(item) else str(item.path)))
    items.sort(key=lambda item: not _makes_labs(item))


def _makes_labs(item: pytest.Item) -> bool:
    return item.path.relative_to(HERE).as_posix().startswith(LABS)
