"""One question to the workers of a job for all who look at it, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.core.test_protection import spread
from tests.broker.core.trusting.test_checking import place
from tests.broker.scenario import Scenario

from farflung.broker import timelines
from farflung.broker.step_rows import makes_sense
from farflung.broker.timelines import NoTimeline, Timelines
from farflung.protocol.messages import ToWorker, decode
from farflung.protocol.timeline import ShowStep, StepShown, StepSpan


class FakeSession:
    """Answers what a worker is asked, if `answers`."""

    seconds_away = 0.5

    def __init__(self, worker: str, add: Callable[[str, StepShown], None], answers: bool = True) -> None:
        self._worker, self._add, self._answers = worker, add, answers
        self.asked: list[ShowStep] = []

    def send_control(self, message: bytes) -> None:
        asked: Any = decode(message, ToWorker)
        self.asked.append(asked)
        if self._answers:
            spans = [StepSpan("forward", 0, 0.0, 1.0)]
            shown = StepShown(asked.job, asked.attempt, asked.unit, 1e-6, spans)
            asyncio.get_running_loop().call_soon(self._add, self._worker, shown)


def made(known: Scenario, *silent: str) -> tuple[Timelines, dict[str, FakeSession]]:
    sessions: dict[str, FakeSession] = {}
    found = Timelines(lambda: known.state, sessions)  # type: ignore[arg-type]
    for name in ("a", "b"):
        sessions[name] = FakeSession(name, found.add, name not in silent)
    return found, sessions


def running(steps: int = 3) -> Scenario:
    known = Scenario("a", "b")
    known.running(steps=steps)
    known.all_ready(0)
    return known


def test_several_viewers_cost_one_question_about_a_step_that_has_not_begun() -> None:
    async def work() -> None:
        known = running()
        found, sessions = made(known)
        one, other = await asyncio.gather(found.of("job-1"), found.of("job-1"))
        assert one is other
        (asked,) = sessions["a"].asked
        job = known.state.jobs["job-1"]
        assert (asked.attempt, asked.unit) == (job.attempt, job.next_unit + 1)
        assert one.step == 2 and one.seconds == 1e-6
        assert list(one.spent) == list(job.members)  # in the order of the pipeline
        assert {span.start for span in one.spans} == {0.5}

    asyncio.run(work())


def test_workers_that_do_not_answer_are_named_and_answers_of_others_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timelines, "LEAST_SECONDS", 0.05)

    async def work() -> None:
        found, _ = made(running(), "b")
        found.add("stranger", StepShown("job-1", 1, 2, 9.0, []))
        seen = await found.of("job-1")
        assert seen.silent == ["b"] and list(seen.spent) == ["a"]
        nothing, _ = made(running(), "a", "b")
        with pytest.raises(NoTimeline, match="try again"):
            await nothing.of("job-1")

    asyncio.run(work())


def test_those_who_wait_for_one_failure_hear_of_it_together_and_the_next_looks_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timelines, "LEAST_SECONDS", 0.05)

    async def work() -> None:
        known = running(5)
        found, sessions = made(known, "a", "b")
        told = await asyncio.gather(*(found.of("job-1") for _ in range(3)), return_exceptions=True)
        assert [str(one) for one in told] == [str(told[0])] * 3
        assert len(sessions["a"].asked) == 1
        monkeypatch.setattr(timelines, "FRESH_SECONDS", 0.0)
        known.all_ready(1)
        with pytest.raises(NoTimeline):
            await found.of("job-1")
        assert [asked.unit for asked in sessions["a"].asked] == [2, 3]

    asyncio.run(work())


def test_a_watch_ends_with_its_attempt() -> None:
    async def work() -> None:
        known = running()
        found, _ = made(known, "a", "b")
        waiting = asyncio.create_task(found.of("job-1"))
        await asyncio.sleep(0.05)
        known.leave("a")
        with pytest.raises(NoTimeline):
            await asyncio.wait_for(waiting, timelines.LOOK_SECONDS + 3)

    asyncio.run(work())


def test_a_job_that_stands_still_for_lack_of_a_checker_says_so_at_once() -> None:
    known = place(idle="", steps=20)
    known.all_ready(0)
    spread(known, 0)
    found, sessions = made(known)
    for unit in (1, 2):  # as far as it may run ahead
        known.all_ready(unit)
    with pytest.raises(NoTimeline, match="runs no steps now, it is waiting for an idle worker to check a's"):
        asyncio.run(found.of("job-1"))
    assert not sessions["a"].asked


@pytest.mark.parametrize(
    "spans",
    [
        [StepSpan("forward", 0, 0.0, 1.0, "b")],
        [StepSpan("activation", 0, 0.0, 1.0)],
        [StepSpan("activation", 0, 0.0, 1.0, "stranger")],
        [StepSpan("activation", 0, 0.0, 1.0, "a\nb 100%")],
    ],
)
def test_answers_that_cannot_be_true_are_not_shown(spans: list[StepSpan]) -> None:
    for seconds in (0.001, 1e9):
        shown = StepShown("job-1", 1, 2, seconds, spans if seconds < 1 else [])
        assert not makes_sense(shown, {"a", "b", "ana"}, 5.0)
    assert makes_sense(StepShown("job-1", 1, 2, 1.0, [StepSpan("gradient", 0, 0, 1, "b")]), {"a", "b"}, 5.0)


def test_there_is_nothing_to_see_of_a_job_that_does_not_train() -> None:
    async def work() -> None:
        waiting = Scenario("a")
        waiting.submit(2)
        for known, job, words in (
            (waiting, "job-9", "no job job-9"),
            (waiting, "job-1", "it is queued"),
        ):
            with pytest.raises(NoTimeline, match=words):
                await made(known)[0].of(job)
        known = running()
        known.all_ready(1)  # the last of three steps runs
        with pytest.raises(NoTimeline, match="no further step"):
            await made(known)[0].of("job-1")

    asyncio.run(work())
