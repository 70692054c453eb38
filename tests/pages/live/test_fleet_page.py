"""A real fleet under training, seen in a real browser while a worker is killed and another one comes."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.support.browser import opened, serious_problems
from tests.support.ports import held_port
from tests.support.processes import Command, Machines, machines, train

pytestmark = [pytest.mark.processes, pytest.mark.faults]

TOO_WIDE = """[...document.body.querySelectorAll("*")].filter((one) => !one.closest(".wide, svg")
    && one.getBoundingClientRect().right > document.documentElement.clientWidth).map((one) => one.outerHTML)
"""
WORKERS = ("home", "lab", "attic", "cellar")


def shown(on: Machines, page: str) -> Command:
    """A broker that shows a page."""
    lease = f"{on.lease_seconds:g}"
    arguments = ["broker", "--listen", on.address, "--lease", lease, "--no-survey", "--web", page]
    broker = on.start("hub", *arguments)
    broker.says("the page of the fleet is at", page)
    return broker


def test_what_happens_to_a_fleet_is_seen_as_it_happens(tmp_path: Path) -> None:
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        broker, token = shown(on, page), on.token("worker", "--uses", "9")
        workers = {name: on.worker(name, token) for name in WORKERS}
        with opened(f"http://{page}/") as found:
            browser = found.page
            browser.get_by_text("4 here: 4 ready").wait_for()
            submitter = ["--token", on.token("submitter"), "--broker", on.address]
            run = train(on, "seen", "--workers", "3", *submitter)
            browser.locator(".job .badge.running").wait_for()
            browser.locator(".job canvas").wait_for()  # at least two points
            said = browser.locator(".job progress").get_attribute("value")
            moved = f".job progress:not([value='{said}'])"
            browser.locator(moved).wait_for()
            browser.locator(".job p").filter(has_text="of a step").wait_for()  # what limits it
            assert browser.locator(".job td").filter(has_text="% of ").count() == 3
            shown_words = browser.locator("body").inner_text()
            assert not {"null", "undefined", "NaN", "[object"} & {*shown_words.split()}

            victim = run.workers[1]
            workers.pop(victim).signal(signal.SIGKILL)
            browser.locator("#left li").filter(has_text=victim).wait_for()
            assert "may have died" in browser.locator("#left li").inner_text()
            assert browser.locator("#workers td").filter(has_text=victim).count() == 0
            workers["late"] = on.worker("late", token)
            browser.locator("#workers td").filter(has_text="late").wait_for()

            with urllib.request.urlopen(f"http://{page}/api/v1/curves") as answer:
                curve = json.load(answer)["job-1"]
            seen = dict(zip(curve["step"], curve["loss"], strict=True))
            written = {row["step"]: row["loss"] for row in run.rows}
            assert len(seen) >= 2
            assert seen.items() <= written.items()
            run.command.signal(signal.SIGINT)
            run.command.code()
            browser.locator(".job .badge.cancelled").wait_for()
            assert found.complaints == []
            assert {request.split("/")[2] for request in found.requests if request[:4] == "http"} == {page}

            broker.stop()
            browser.locator("#trouble").filter(
                has_text="The broker has ended, and all its jobs are over"
            ).wait_for()
        for worker in workers.values():
            worker.stop()


@pytest.mark.full
def test_a_step_is_seen_as_it_ran_and_planned_again_as_the_viewer_likes(tmp_path: Path) -> None:
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        broker, token = shown(on, page), on.token("worker", "--uses", "9")
        workers = [on.worker(name, token) for name in WORKERS[:2]]
        with opened(f"http://{page}/") as found:
            browser = found.page
            shown_token = on.token("submitter")
            run = train(on, "seen", "--workers", "2", "--token", shown_token, "--broker", on.address)
            browser.locator(".job .badge.running").wait_for()
            browser.locator(".step-panel summary").click()
            browser.locator("figcaption").filter(has_text="As it ran: step").wait_for()
            browser.locator("figcaption").filter(has_text="As the simulator has it").wait_for()
            assert browser.locator(".steps svg path.span.forward").count() >= 2
            assert browser.locator(".steps td").filter(has_text="computing").count() == 2
            line = browser.get_by_label("uplink of home, Mbit/s")
            line.fill("0.01")
            line.press("Tab")
            browser.locator(".steps .why").filter(has_text="A step would take").wait_for()
            browser.get_by_label("the job may use home").uncheck()
            browser.get_by_label("the job may use lab").uncheck()
            browser.locator(".steps .why").filter(has_text="no worker is left").wait_for()
            browser.get_by_role("button", name="As it is").click()
            browser.get_by_label("the job may use lab").wait_for()
            assert browser.get_by_label("the job may use lab").is_checked()

            browser.get_by_text("Log", exact=True).click()
            browser.locator(".log li").filter(has_text="was submitted by").wait_for()
            assert "2 workers" in (browser.locator("#map").get_attribute("aria-label") or "")
            assert serious_problems(browser) == []
            browser.emulate_media(color_scheme="dark")
            browser.set_viewport_size({"width": 390, "height": 844})
            assert serious_problems(browser) == []
            assert browser.evaluate(TOO_WIDE) == []  # a phone needs no sideways scrolling
            browser.set_viewport_size({"width": 1200, "height": 900})
            told = on.document("hub", "trace", "job-1", "--json")
            assert set(told["spent"]) == {"home", "lab"}
            for spent in told["spent"].values():
                assert sum(spent.values()) == pytest.approx(told["seconds"], rel=0.03, abs=0.02)
            assert "there is no job job-9" in on.fails("hub", "trace", "job-9")

            browser.locator("#act summary").click()
            browser.locator("#act-target").fill("job-1")
            browser.locator("#act-reason").fill("it was slow")
            for wrong, words in (
                (shown_token[:-1], "copy all of it again"),
                (on.token("worker"), "a worker's token may do nothing here"),
                (on.token("submitter"), "only jobs of those who joined with it"),
            ):
                browser.locator("#act-token").fill(wrong)
                browser.get_by_role("button", name="Do it").click()
                browser.locator("#act-words").filter(has_text=words).wait_for()
            browser.locator("#act-token").fill(shown_token)
            browser.get_by_role("button", name="Do it").click()
            browser.locator("#act-words").filter(has_text="job-1 ends").wait_for()
            browser.locator(".job .badge.cancelled").wait_for()
            run.command.code()
            assert "it was slow" in run.summary["reason"]
            found.complaints[:] = [one for one in found.complaints if "409" not in one]
            assert found.complaints == []
        for worker in workers:
            worker.stop()
        broker.stop()


@pytest.mark.full
def test_local_workers_have_a_page_while_they_train(tmp_path: Path) -> None:
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        run = train(on, "run", "--local", "2", "--web", page)
        run.reaches(3)
        assert f"watch them at http://{page}/" in run.command.err
        with opened(f"http://{page}/") as found:
            found.page.locator(".job .badge.running").wait_for()
            assert found.complaints == []
        run.command.signal(signal.SIGINT)
        assert run.command.code() == 130


def test_a_page_that_cannot_be_is_one_clear_line_before_anything_begins(tmp_path: Path) -> None:
    with machines(tmp_path) as on, socket.create_server(("127.0.0.1", 0)) as other:
        used = f"127.0.0.1:{other.getsockname()[1]}"
        assert used in on.fails("desk", "train", "net.py", "--local", "2", "--web", used)
        assert "--web is for --local" in on.fails("desk", "train", "net.py", "--web", used)
        other_address = on.fails("desk", "train", "net.py", "--local", "2", "--web", "0.0.0.0:7701")
        assert "an address of this machine" in other_address
        assert "give --web-token" in on.fails("hub", "broker", "--listen", on.address, "--web", "0.0.0.0:0")
        assert used in on.fails("hub", "broker", "--listen", on.address, "--web", used)


def test_a_link_with_the_token_opens_the_page_from_another_site(tmp_path: Path) -> None:
    """A click in somebody's mail comes from another site, to which a browser sends no strict cookie."""
    token = "a-token-of-16-characters-or-more"
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        arguments = ["broker", "--listen", on.address, "--no-survey", "--web", page, "--web-token", token]
        broker = on.start("hub", *arguments)
        broker.says("the page of the fleet is at", page)
        mail = tmp_path / "mail.html"
        mail.write_text(f'<a href="http://{page}/?token={token}">look</a>')
        with opened(mail) as found:
            found.page.locator("a").click()
            found.page.get_by_text("0 here").wait_for()
            assert found.page.url == f"http://{page}/"  # without the token, which a screenshot would show
        broker.stop()


def test_a_browser_that_is_too_old_or_runs_no_scripts_shows_what_it_needs(tmp_path: Path) -> None:
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        broker = shown(on, page)
        with opened(f"http://{page}/", java_script_enabled=False) as found:
            found.page.get_by_text("a version of 2022 or newer").wait_for()
        with opened("about:blank") as found:
            found.page.add_init_script("delete window.EventSource")
            found.page.goto(f"http://{page}/")
            found.page.get_by_text("a version of 2022 or newer").wait_for()
        broker.stop()


def test_hostile_names_show_as_text(tmp_path: Path) -> None:
    """A worker chooses the name of its site."""
    hostile = "<img src=x onerror='window.owned=1'>"
    with machines(tmp_path) as on, held_port() as port:
        page = f"127.0.0.1:{port}"
        broker = shown(on, page)
        joins = ["join", on.address, "--name", "home", "--listen", on.listen, "--site", hostile]
        worker = on.start("home", *joins, "--token", on.token("worker"))
        worker.says("registered")
        with opened(f"http://{page}/") as found:
            found.page.locator("#workers td").filter(has_text=hostile).wait_for()
            assert found.page.evaluate("document.querySelectorAll('img').length") == 0
            assert found.complaints == []
        worker.stop()
        broker.stop()
