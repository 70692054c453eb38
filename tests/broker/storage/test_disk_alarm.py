"""A broker whose disk is nearly full takes no new jobs, and goes on with those that it has."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from tests.broker.core.trusting.test_removing import answer
from tests.broker.scenario import SUBMITTER_SEEN_AT, Scenario, training
from tests.support.broker_fleet import Member, broker, identity

from farflung.broker.core import events
from farflung.broker.core.state import Outcome
from farflung.broker.storage import disk_alarm
from farflung.broker.storage.disk_alarm import LOW_BYTES, alarm
from farflung.protocol.messages import Accepted, Denied, Submit
from farflung.transport.timeouts import Timeouts

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free", "is_low"), [(LOW_BYTES, False), (LOW_BYTES - 1, True)])
def test_a_disk_is_low_below_a_limit(
    free: int, is_low: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, free))
    assert ("nearly full (only 134 MB are free, kept for jobs that run)" in alarm(tmp_path)) is is_low
    assert bool(alarm(tmp_path)) is is_low


def test_a_folder_that_is_gone_raises_no_alarm(tmp_path: Path) -> None:
    assert alarm(tmp_path / "nowhere") == ""


def submit(story: Scenario, run: str, alarm: str) -> Outcome:
    message = Submit("gpt", b"graph", training(), 2, run=run)
    said = events.SubmitterMessage(story.now, "ana", message, SUBMITTER_SEEN_AT, alarm=alarm)
    return story.feed(said)


def test_new_jobs_are_denied_with_the_reason_and_others_go_on() -> None:
    story = Scenario("a", "b")
    submit(story, "first", "")
    story.planned()
    for worker in "ab":
        story.loaded(worker)
    found = answer(submit(story, "second", "the disk is nearly full"))
    assert found == Denied("the disk is nearly full") and list(story.state.jobs) == ["job-1"]
    submit(story, "first", "the disk is nearly full")  # said again: it is not new, and links up anew
    for worker in "ab":
        story.loaded(worker, attempt=2)
    for unit in range(3):
        story.all_ready(unit)
    assert story.state.jobs["job-1"].state == "collecting"


def test_a_real_broker_denies_a_job_while_its_disk_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        monkeypatch.setattr(disk_alarm, "LOW_BYTES", 2**62)
        async with asyncio.timeout(60), broker(tmp_path / "hub") as service:
            ana = await Member.dial(service, await identity(service, tmp_path / "hub", "ana", "submitter"))
            while not service._dispatcher.alarm:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            ana.say(Submit("gpt", b"graph", training(), 2))
            assert "disk is nearly full" in (await ana.hear(Denied)).reason
            monkeypatch.undo()
            while service._dispatcher.alarm:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            ana.say(Submit("gpt", b"graph", training(), 2))
            assert "waiting for 2 more workers" in (await ana.hear(Accepted)).state

    asyncio.run(work())


def test_a_disk_that_does_not_answer_does_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers, ticks = list[Path](), threading.Event(), list[int]()

    def hang(folder: Path) -> str:
        asked.append(folder)
        answers.wait(60)
        return ""

    async def work() -> None:
        monkeypatch.setattr(disk_alarm, "alarm", hang)
        async with asyncio.timeout(60), broker(tmp_path / "hub", Timeouts(2.0)) as service:
            monkeypatch.setattr(service._surveys, "update", lambda: ticks.append(1))
            try:
                while len(ticks) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert len(asked) == 1
            finally:
                answers.set()
            while len(asked) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(work())
