"""Asks the workers of a job what they do in one of the next steps, for all who want to see it at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from farflung.broker.core.records import LOADING, PLANNING, QUEUED, RUNNING, Job, State
from farflung.broker.sessions import HolderSession
from farflung.broker.step_rows import makes_sense, timeline_of
from farflung.errors import FarflungError
from farflung.protocol import messages
from farflung.protocol.timeline import ShowStep, StepShown, StepTimeline

FRESH_SECONDS = 2.0
"""A timeline is shown for so long before workers are asked for another one."""
LEAST_SECONDS = 5.0
LOOK_SECONDS = 1.0
MOST_SECONDS = 600.0
MOST_AHEAD = 1000
"""Evaluations that may lie between this unit and the next step."""


class NoTimeline(FarflungError):
    """There is nothing to see of a job's steps; says why."""


@dataclass
class _Asked:
    """What is known of one step so far."""

    attempt: int
    unit: int
    step: int
    workers: frozenset[str]
    submitter: str
    at: float
    answered: set[str] = field(default_factory=set)
    shown: dict[str, StepShown] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Timelines:
    """One timeline for each job at a time, kept for a moment. Nothing of it is stored or decided by."""

    def __init__(self, state: Callable[[], State], sessions: Mapping[str, HolderSession]) -> None:
        self._state = state
        self._sessions = sessions
        self._asked: dict[str, _Asked] = {}
        self._made: dict[str, tuple[float, StepTimeline | NoTimeline]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, job: str) -> StepTimeline:
        """The timeline of a step that ran just now, or of the next one; takes as long as a step or two.

        Raises
        ------
        NoTimeline
            The job does not run, or none of its workers answers.
        """
        self._require_running(job)
        async with self._locks.setdefault(job, asyncio.Lock()):
            at, made = self._made.get(job, (0.0, None))
            if made is None or time.monotonic() - at > FRESH_SECONDS:
                made = await self._outcome(job)
                self._keep(job, made)
        if isinstance(made, NoTimeline):
            raise made
        return made

    async def _outcome(self, job: str) -> StepTimeline | NoTimeline:
        """A timeline, or why there is none, for all who wait for it."""
        try:
            return await self._ask(self._require_running(job))
        except NoTimeline as why:
            return why

    def add(self, worker: str, shown: StepShown) -> None:
        """Take a worker's answer; one that was not asked for is ignored."""
        asked = self._asked.get(shown.job)
        if asked is None or worker not in asked.workers or worker in asked.shown:
            return
        if (shown.attempt, shown.unit) == (asked.attempt, asked.unit):
            asked.answered.add(worker)
            if makes_sense(shown, asked.workers | {asked.submitter}, time.monotonic() - asked.at):
                asked.shown[worker] = shown
            if asked.answered == asked.workers:
                asked.complete.set()

    def _require_running(self, job: str) -> Job:
        found = self._state().jobs.get(job)
        if found is None:
            raise NoTimeline(f"there is no job {job}: `farflung status` lists them")
        if found.state != RUNNING:
            later = ": try again once it runs" if found.state in (QUEUED, PLANNING, LOADING) else ""
            raise NoTimeline(f"{job} runs no steps now, it is {found.state}{later}")
        if found.words and found.group is not None and found.group.complete:
            raise NoTimeline(f"{job} runs no steps now, it is {found.words}")
        return found

    def _goes_on(self, job: Job) -> bool:
        """Whether the attempt still runs in which a step is watched."""
        now = self._state().jobs.get(job.job)
        return now is not None and now.state == RUNNING and now.attempt == job.attempt

    async def _ask(self, job: Job) -> StepTimeline:
        asked = _next_step(job)
        self._asked[job.job] = asked
        message = messages.encode(ShowStep(job.job, asked.attempt, asked.unit))
        for worker in sorted(asked.workers):
            if session := self._sessions.get(worker):
                session.send_control(message)
        usual = job.replanning.step_seconds or 0.0
        until = asked.at + min(MOST_SECONDS, LEAST_SECONDS + 4 * usual)
        try:
            while not asked.complete.is_set() and self._goes_on(job) and time.monotonic() < until:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.complete.wait(), LOOK_SECONDS)
        finally:
            del self._asked[job.job]
        if not asked.shown:
            raise NoTimeline(f"no step of {job.job} ended while it was watched: try again")
        away = {name: self._sessions[name].seconds_away for name in asked.shown if name in self._sessions}
        shown = {name: asked.shown[name] for name in job.members if name in asked.shown}
        silent = sorted(asked.workers - asked.shown.keys())
        made = partial(timeline_of, job.job, asked.step, shown, away, job.submitter, silent)
        return await asyncio.to_thread(made)

    def _keep(self, job: str, made: StepTimeline | NoTimeline) -> None:
        """Keep an outcome for a moment, and forget those of jobs that are over."""
        jobs = self._state().jobs
        self._made[job] = time.monotonic(), made
        for name in [name for name in self._made if name not in jobs or jobs[name].over]:
            del self._made[name]
        for name in [
            name for name, lock in self._locks.items() if name not in self._made and not lock.locked()
        ]:
            del self._locks[name]


def _next_step(job: Job) -> _Asked:
    """The first training step that begins only after this message has reached the workers."""
    units = job.training.units()
    for number in range(job.next_unit + 1, job.next_unit + MOST_AHEAD):
        unit = units.at(number)
        if unit is None:
            break
        if unit.train:
            members = frozenset(job.members)
            return _Asked(job.attempt, number, unit.step, members, job.submitter, time.monotonic())
    raise NoTimeline(f"{job.job} has no further step to watch")
