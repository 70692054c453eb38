"""Plan a running job again with changes that a viewer makes up. The answer is shown, and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from farflung.broker.core.events import ConsiderPlan
from farflung.broker.core.protecting import protection
from farflung.broker.core.records import RUNNING, Job, State
from farflung.broker.core.training import job_queue
from farflung.broker.planning.client import ask_process, question_for
from farflung.broker.planning.what_if_messages import Foreseen, WhatIf, WhatIfQuestion
from farflung.broker.storage.contract import BrokerStore
from farflung.broker.survey.topology import MeasuredTopology
from farflung.errors import PlanError
from farflung.plans import Plan
from farflung.plans.topology import MOST_WORKERS

PROGRAM = "farflung.broker.planning.what_if_process"
SEARCH_SECONDS = 1.0
"""CPU time of a search: the answer is for somebody who waits for it."""
LIMIT_SECONDS = 60.0
MOST_WAITING = 8

Topology = Callable[[Sequence[str]], MeasuredTopology]


class WhatIfs:
    """Answers what-ifs one at a time, each by a process of its own."""

    def __init__(self, state: Callable[[], State], topology: Topology, store: BrokerStore) -> None:
        self._state = state
        self._topology = topology
        self._store = store
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, asked: WhatIf) -> Foreseen:
        """The step of a job as it is now and with the changes.

        Raises
        ------
        PlanError
            The job does not run, there are too many workers to plan for, or too many ask.
        """
        if self._waiting >= MOST_WAITING:
            raise PlanError("several what-ifs are being planned now: try again in a moment")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._answer(asked)
        finally:
            self._waiting -= 1

    async def _answer(self, asked: WhatIf) -> Foreseen:
        command = _command(self._state(), asked.job)
        graph = (await asyncio.to_thread(self._store.blobs, [command.graph]))[command.graph]
        if len(command.workers) > MOST_WORKERS:
            raise PlanError(
                f"a what-if is about at most {MOST_WORKERS} workers, here are {len(command.workers)}"
            )
        measured = await asyncio.to_thread(self._topology, command.workers)
        question = question_for(command, graph, measured, SEARCH_SECONDS)
        assert command.current is not None
        members = [name for name in command.workers if name in command.current.workers()]
        body = msgspec.msgpack.encode(WhatIfQuestion(question, asked, members))
        return await ask_process(PROGRAM, body, Foreseen, LIMIT_SECONDS)


def _command(state: State, name: str) -> ConsiderPlan:
    """The question of a better plan for a job, on its workers and all idle ones."""
    job = state.jobs.get(name)
    if job is None:
        raise PlanError(f"there is no job {name}: `farflung status` lists them")
    if job.state != RUNNING or job.plan is None or job.blobs.graph is None:
        raise PlanError(f"{name} is {job.state}: a what-if is about a job that runs")
    workers = sorted({*job.members, *job_queue.usable_for(state, job)})
    abilities = {one: state.workers[one].device.ability for one in workers}
    copies = protection.copies_wanted(state, job, workers)
    return ConsiderPlan(
        job.job, job.attempt, job.blobs.graph, job.training, tuple(workers), 0, job.wishes, abilities,
        copies, job.replanning.slow, _running_plan(job, job.plan),
    )  # fmt: skip


def _running_plan(job: Job, plan: Plan) -> Plan:
    """The plan with the codecs that links have now."""
    return msgspec.structs.replace(plan, codecs=list(job.codecs), later=[])
