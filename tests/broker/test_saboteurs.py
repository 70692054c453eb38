"""A real broker and a worker that answers each `Load` with `Refused`: jobs go on with the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from tests.broker.test_service import STEPS, job, planner, registered, status, story, submitter
from tests.support.broker_fleet import Member, PretendedWorker, identity

from farflung.broker.service import BrokerService
from farflung.client.run.broker_client import ask_members, ask_to_allow
from farflung.protocol.messages import (
    Begin,
    Collected,
    Collecting,
    Decide,
    Ended,
    Load,
    Loaded,
    MemberChanged,
    Refused,
)

__all__ = ["planner"]

pytestmark = pytest.mark.usefixtures("planner")


async def works(worker: PretendedWorker, refused: list[str]) -> None:
    """Do all that the broker asks for; the one called saboteur refuses each job."""
    while True:
        message = await worker._heard.get()
        if isinstance(message, Load) and worker.id == "a-saboteur":
            refused.append(message.job)
            worker.say(Refused(message.job, message.attempt, "I would rather not"))
        elif isinstance(message, Load):
            worker.load = message
            worker.say(Loaded(message.job, message.attempt))
        elif isinstance(message, Begin):
            worker.ready(0)
        elif isinstance(message, Decide) and message.unit + 1 < STEPS:
            worker.ready(message.unit + 1)


async def run_one(ana: Member, workers: int) -> Ended:
    ana.say(job(workers))
    while True:
        message = await asyncio.wait_for(ana._heard.get(), 30)
        if isinstance(message, Collecting):
            ana.say(Collected(message.job, message.attempt))
        elif isinstance(message, Ended):
            return message


def test_a_worker_that_refuses_every_load_fails_none_of_five_jobs(tmp_path: Path) -> None:
    """It failed all five when each refusal ended its job."""

    async def scene(service: BrokerService, folder: Path) -> None:
        workers = await registered(service, folder, "a-saboteur", "lab-1", "lab-2")
        ana, refused = await submitter(service, folder), list[str]()
        working = asyncio.gather(*(works(worker, refused) for worker in workers))
        ends = [await run_one(ana, 2) for _ in range(5)]
        assert [(one.state, one.reason) for one in ends] == [("done", "")] * 5
        assert refused == ["job-1"]
        olga = await identity(service, folder, "olga", "operator")
        found = {one.member: one for one in (await ask_members(olga)).members}
        assert found["a-saboteur"].suspicions == 1 and not found["a-saboteur"].suspended
        assert "I would rather not" in found["a-saboteur"].suspected
        changed = await ask_to_allow(olga, "a-saboteur")
        assert isinstance(changed, MemberChanged) and "this is forgotten: it" in changed.words
        shown = await status(service, folder)
        assert shown.backup_pool == ["a-saboteur", "lab-1", "lab-2"]
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working

    story(tmp_path, scene)
