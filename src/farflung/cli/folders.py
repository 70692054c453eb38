"""Where a holder keeps its identity unless told otherwise: under FARFLUNG_HOME, by default ~/.farflung."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder of all of this user's identities."""
    return Path(os.environ.get("FARFLUNG_HOME") or Path.home() / ".farflung").expanduser()


def folder_of(role: str, given: Path | None) -> Path:
    """`given`, or the default folder of a role (broker, worker, submitter or viewer)."""
    return home() / role if given is None else given.expanduser()
