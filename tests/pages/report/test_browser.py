"""Pages in a real browser: they show a run, replay it, need no network, and run no script but their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pages.report.runs import BEGAN, Writer, change, run_with_a_fault
from tests.support.browser import Opened, opened, serious_problems

from farflung.client.output.records import ValidationRow
from farflung.pages.report.page import write_page

pytestmark = pytest.mark.processes

HOSTILE = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>"
PHONE = {"width": 390, "height": 800}


def page_of(*folders: Path) -> Path:
    return Path(write_page(list(folders), folders[0].parent / "page.html").file)


def went_well(found: Opened, file: Path) -> bool:
    """Whether nothing was complained of, and nothing asked for but the file itself."""
    return found.complaints == [] and found.requests == [file.resolve().as_uri()]


def move_to(page: Any, position: int) -> None:
    """Move the slider, of 1,000 positions."""
    page.locator("#moment").fill(str(position))


def test_a_run_is_shown_and_replayed(tmp_path: Path) -> None:
    playing = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: `make dev` installs it"
    )
    file = page_of(run_with_a_fault(tmp_path / "run"))
    with opened(file) as found:
        page = found.page
        page.locator("#main").wait_for()
        assert page.locator("#unread").count() == 0
        assert page.locator("h1").inner_text() == "gpt"
        assert page.locator("header .state").inner_text() == "done"
        assert page.locator("#charts canvas").count() == 5  # loss, seconds, bytes, gradient norm, accuracy
        assert "step 6 of 6" in page.locator("#moment-words").inner_text()
        assert page.locator(".segments strong").all_inner_texts() == ["home", "attic"]
        assert page.locator(".events .later").count() == 0

        move_to(page, 300)  # 9 s after it began: attempt 1
        assert "step 2 of 6" in page.locator("#moment-words").inner_text()
        assert page.locator(".segments strong").all_inner_texts() == ["home", "lab"]
        link = page.locator(".links tbody tr").filter(has_text="home -> lab").inner_text()
        assert "int8" in link
        assert "0.016 Mbit/s" in link
        assert page.locator(".events .later").count() == 6

        page.locator(".events button").filter(has_text="21 s, step 6").click()
        assert "step 6 of 6" in page.locator("#moment-words").inner_text()
        page.locator("#moment").press("Home")
        assert "step 0 of 6" in page.locator("#moment-words").inner_text()
        page.locator("input[value=time]").check()
        assert page.locator("#charts canvas").count() == 5
        page.locator("#play").click()
        playing.expect(page.locator("#moment")).not_to_have_value("0")
        page.locator("#play").click()
        assert went_well(found, file)


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    other = Writer(tmp_path / "other")
    other.event(0, "submitted", name="other", broker="127.0.0.1:7700")
    other.step(1, 1.0)
    other.ended(2, "failed", "the disk is full")
    file = page_of(run_with_a_fault(tmp_path / "run"), other.path)
    with opened(file) as found:
        page = found.page
        assert page.locator("h1").all_inner_texts() == ["gpt", "other"]
        assert page.locator("#summary table").count() == 2
        assert "the disk is full" in page.locator("header").inner_text()
        assert "run 2: step 1 of 1" in page.locator("#moment-words").inner_text()
        assert "no plan" in page.locator("#plan .run-1").inner_text()
        assert went_well(found, file)


def test_a_run_without_times_goes_by_steps(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name="old", broker="127.0.0.1:7700")
    for step in (1, 2, 3, 4):
        run.step(step, None)
    run.ended(9)
    file = page_of(run.path)
    with opened(file) as found:
        page = found.page
        move_to(page, 500)
        assert page.locator("#moment-words").inner_text().startswith("step 2 of 4")
        assert not page.locator("#axis").is_visible()
        assert "older farflung" in page.locator(".warning").inner_text()
        assert went_well(found, file)


def test_hostile_names_show_as_text(tmp_path: Path) -> None:
    run = Writer(tmp_path / "run")
    run.event(0, "submitted", name=HOSTILE, broker=HOSTILE)
    run.planned(1, workers=(HOSTILE, "lab"))
    run.event(2, "codecs", step=0, changes=[change(HOSTILE, "lab", HOSTILE)], words=[HOSTILE])
    run.step(1, 3.0)
    run.ended(4, "failed", HOSTILE)
    file = page_of(run.path)
    with opened(file) as found:
        page = found.page
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator(".segments strong").first.inner_text() == HOSTILE
        assert page.evaluate("window.owned") is None
        assert page.locator("img").count() == 0
        assert went_well(found, file)


def test_metrics_may_have_any_name_in_one_run_of_two(tmp_path: Path) -> None:
    other = Writer(tmp_path / "other")
    names = {"constructor": 1.0, "toString": 2.0, "__proto__": 3.0}
    other.folder.add_validation(ValidationRow(1, 2.0, names, 1, BEGAN + 1))
    other.ended(2)
    file = page_of(run_with_a_fault(tmp_path / "run"), other.path)
    with opened(file) as found:
        titles = found.page.locator(".chart h3").all_inner_texts()
        assert {"accuracy", "constructor", "toString"} <= {*titles}
        assert found.page.locator("#unread").count() == 0
        assert went_well(found, file)


def test_beside_an_older_run_the_plan_goes_by_steps(tmp_path: Path) -> None:
    older = Writer(tmp_path / "older")
    for step in (1, 2, 3, 4, 5, 6):
        older.step(step, None)
    older.ended(9)
    file = page_of(run_with_a_fault(tmp_path / "run"), older.path)
    with opened(file) as found:
        for position, workers in ((1000, ["home", "attic"]), (170, ["home", "lab"])):
            move_to(found.page, position)
            assert found.page.locator("#plan .run-0 strong").all_inner_texts() == workers


def test_a_page_holds_no_run_at_all(tmp_path: Path) -> None:
    """A run that ended before its first step."""
    run = Writer(tmp_path / "run")
    run.ended(1, "failed", "no worker came")
    file = page_of(run.path)
    with opened(file) as found:
        assert "no worker came" in found.page.locator("header").inner_text()
        assert "step 0 of 0" in found.page.locator("#moment-words").inner_text()
        assert went_well(found, file)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_a_phone_needs_no_sideways_scrolling(
    tmp_path: Path, scheme: str
) -> None:
    file = page_of(run_with_a_fault(tmp_path / "run"), run_with_a_fault(tmp_path / "other"))
    with opened(file, color_scheme=scheme, viewport=PHONE, bypass_csp=True) as found:
        found.page.locator("#main").wait_for()
        assert serious_problems(found.page) == []
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert found.page.evaluate(width) == 0
