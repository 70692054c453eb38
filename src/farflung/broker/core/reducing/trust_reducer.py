"""How facts about members that are not trusted change the state."""

from __future__ import annotations

from dataclasses import replace

from farflung.broker.core import facts
from farflung.broker.core.records import Job, State
from farflung.broker.core.trusting.records import Blame, Removal, Suspicion


def member_removed(fact: facts.MemberRemoved, state: State) -> State:
    removal = Removal(fact.member, fact.role, fact.at, fact.operator, fact.reason)
    state = replace(state, removed={**state.removed, fact.member: removal})
    worker = state.workers.get(fact.member)
    # Its copies are not read any more.
    return state if worker is None else state.with_worker(replace(worker, held=()))


def member_allowed(fact: facts.MemberAllowed, state: State) -> State:
    removed = {member: one for member, one in state.removed.items() if member != fact.member}
    suspicions = {worker: one for worker, one in state.suspicions.items() if worker != fact.member}
    for job in state.jobs.values():
        if fact.member in job.blamed:
            state = state.with_job(_without_blame(job, fact.member))
    return replace(state, removed=removed, suspicions=suspicions)


def worker_blamed(fact: facts.WorkerBlamed, state: State) -> State:
    job = state.jobs[fact.job]
    blame = Blame(fact.reason, fact.unit, fact.excused)
    return state.with_job(replace(job, blamed={**job.blamed, fact.worker: blame}))


def worker_suspected(fact: facts.WorkerSuspected, state: State) -> State:
    before = state.suspicions.get(fact.worker)
    count = 1 if before is None else before.count + 1
    proven = fact.proven or (before is not None and before.proven)
    suspicion = Suspicion(count, fact.at, fact.job, fact.reason, proven)
    state = replace(state, suspicions={**state.suspicions, fact.worker: suspicion})
    return state.with_job(_without_blame(state.jobs[fact.job], fact.worker))


def suspicions_limited(fact: facts.SuspicionsLimited, state: State) -> State:
    return replace(state, most_suspicions=fact.most)


def wait_limited(fact: facts.WaitLimited, state: State) -> State:
    return replace(state, replace_seconds=fact.seconds)


def _without_blame(job: Job, worker: str) -> Job:
    return replace(job, blamed={name: one for name, one in job.blamed.items() if name != worker})
