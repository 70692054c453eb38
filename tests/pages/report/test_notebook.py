"""Pages of runs in notebooks, as a browser shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pages.report.runs import run_with_a_fault
from tests.support.browser import opened

import farflung
from farflung.errors import JobError


@pytest.mark.processes
def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path: Path) -> None:
    shown = farflung.show(run_with_a_fault(tmp_path / "run"))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{shown._repr_html_()}</body>")
    with opened(notebook, viewport={"width": 1000, "height": 900}) as found:
        frame = found.page.frame_locator("iframe")
        frame.locator(".segments strong").first.wait_for()
        assert frame.locator("h1").inner_text() == "gpt"
        assert found.complaints == []
    assert "farflung report" in repr(shown)


def test_three_runs_or_none_are_refused(tmp_path: Path) -> None:
    run = run_with_a_fault(tmp_path / "run")
    for runs in ((), (run, run, run)):
        with pytest.raises(JobError, match=f"not {len(runs)} runs"):
            farflung.show(*runs)
    with pytest.raises(JobError, match="expected a run folder"):
        farflung.show(tmp_path)
