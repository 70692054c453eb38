"""A real browser for tests of pages, skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.browser import CHROMIUM, Opened, browsing

__all__ = ["Opened", "opened", "serious_problems"]


@contextmanager
def opened(where: Path | str, **context: Any) -> Iterator[Opened]:
    """The page of a file or at a URL, in a new browser; options are Playwright's, such as `viewport`."""
    pytest.importorskip("playwright.sync_api", reason="playwright is missing: `make dev` installs it")
    if CHROMIUM is None:
        pytest.skip("no Chromium here: `apt install chromium` brings one")
    with browsing(where, **context) as found:
        yield found


def serious_problems(page: Any) -> list[str]:
    """What axe-core finds wrong with a page for people with disabilities, where that is serious or worse."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="`make dev` installs axe")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")
    ]
