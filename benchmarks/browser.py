"""The distribution's Chromium, driven by Playwright: for benchmarks and for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SLOWEST_MS = 60_000
"""How long a page may take on a busy machine before it is given up."""


@dataclass
class Opened:
    """A page in a browser: Playwright's page, what its console said and what it asked of a network."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@contextmanager
def browsing(where: Path | str, **context: Any) -> Iterator[Opened]:
    """The page of a file or at a URL, in a new browser; options are Playwright's, such as `viewport`.

    Raises ModuleNotFoundError without Playwright, and FileNotFoundError without a Chromium.
    """
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise FileNotFoundError("no Chromium here: `apt install chromium` brings one")
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=as_root)
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(SLOWEST_MS)
        found = Opened(page)
        page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(where if isinstance(where, str) else where.resolve().as_uri())
        yield found
        browser.close()
