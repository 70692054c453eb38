"""The page of a run in a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from farflung.client.api.run import Run
from farflung.errors import JobError
from farflung.pages.report.document import document_of
from farflung.pages.report.page import MOST_RUNS, render
from farflung.pages.report.recorded import read_run
from farflung.text import count_of

HEIGHT = 800


class Shown:
    """A page as a notebook shows it: the last expression of a cell, or what `display` is given."""

    def __init__(self, page: bytes, folders: Sequence[Path], height: int) -> None:
        self._page = page
        self._folders = shlex.join(str(folder) for folder in folders)
        self._height = height

    def _repr_html_(self) -> str:
        """A frame that runs the page's own scripts and has no access to the notebook."""
        frame = (
            f'<iframe sandbox="allow-scripts" width="100%" height="{self._height}" title="farflung report"'
        )
        return f'<div>{frame} srcdoc="{escape(self._page.decode())}"></iframe></div>'

    def __repr__(self) -> str:
        return f"the page of a run, which a notebook shows; elsewhere: farflung report {self._folders}"


def show(*runs: Run | str | Path, height: int = HEIGHT) -> Shown:
    """The page of a run, or of two side by side, for a notebook: as of now, also while it goes on.

    Parameters
    ----------
    runs
        What `Fleet.train` returned, or run folders.
    height
        Of the frame, in pixels.

    Raises
    ------
    JobError
        There are more than two runs, or a folder holds none.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise JobError(f"show takes a run, or two to compare, not {count_of(len(runs), 'run')}")
    folders = [one.folder if isinstance(one, Run) else Path(one) for one in runs]
    return Shown(render([document_of(read_run(folder)) for folder in folders]), folders, height)
