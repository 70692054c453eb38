"""Who counts as home for a job, and may so run segments that read its raw data, or hold copies of them. Pure.

Copies count, too: two versions of an embedding differ in the rows of the tokens that were trained on, and the
slots of an optimizer tell the same. A worker is home only if both sides say so: the submitter names it in the
job, and its owner has named the submitter (`farflung join --home-of`). Ids are unique, because a certificate
is issued only once for each, so no stranger can pose as a home worker, or call another's machine one.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from farflung.broker.core.records import Job, State, Worker
from farflung.plans import Plan, Wishes
from farflung.plans.wishes import KeepHome
from farflung.text import and_more

NAMED = 3
"""How many workers a message names at most."""


def is_home(job: Job, worker: Worker) -> bool:
    """Whether a worker is at home for a job."""
    return worker.worker in job.wishes.home.workers and job.submitter in worker.home_of


def may_hold(job: Job, worker: Worker, owner: str) -> bool:
    """Whether a worker may run a member's share of the job's plan, or hold copies of it."""
    return job.plan is None or owner not in job.plan.at_home() or is_home(job, worker)


def strangers(state: State, job: Job, plan: Plan) -> list[str]:
    """The workers of a plan that would read data which is to stay at home."""
    if not job.wishes.home.data:
        return []
    return sorted(name for name in plan.at_home() if not is_home(job, state.workers[name]))


def home_workers(state: State, job: Job, names: Collection[str]) -> list[str]:
    """Those of these workers that are at home for a job that keeps data at home; none for others."""
    if not job.wishes.home.data:
        return []
    return [name for name in names if is_home(job, state.workers[name])]


def wishes_of(state: State, job: Job) -> Wishes:
    """The job's wishes for the planner: of the home workers that it names, those whose owners agree."""
    home = job.wishes.home
    found = home_workers(state, job, [name for name in home.workers if name in state.workers])
    if not found:
        return job.wishes
    return msgspec.structs.replace(job.wishes, home=KeepHome(home.data, tuple(found)))


def waits_for(state: State, job: Job, usable: Collection[str]) -> list[str]:
    """The home workers that a job waits for; none if one of those that are usable is at home."""
    home = job.wishes.home
    return list(home.workers) if home.data and not home_workers(state, job, usable) else []


def waiting_words(state: State, job: Job, names: Collection[str]) -> str:
    """What keeps home workers from a job, and what helps; empty if they just have to come."""
    removed = [name for name in names if name in state.removed]
    there = {name for name in names if name in state.workers and state.workers[name].connected}
    others = [name for name in sorted(there) if job.submitter not in state.workers[name].home_of]
    why = []
    if removed:
        commands = and_more([f"farflung member allow {name}" for name in removed], NAMED, joint=" or ")
        why.append(f"{and_more(removed, NAMED)} {_verb(removed, 'was', 'were')} removed: {commands}")
    if others:
        is_there = f"{and_more(others, NAMED)} {_verb(others, 'is there, but was', 'are there, but were')}"
        again = f"start {_verb(others, 'it', 'one of them')} again with it"
        why.append(f"{is_there} started without --home-of {job.submitter}: {again}")
    return "; ".join(why)


def _verb(names: Collection[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def denial(state: State, submitter: str, home: KeepHome, on: Collection[str]) -> str:
    """Why a submitter may not call these workers home, and what to do; empty if it may."""
    if not home.data:
        return ""
    unknown = sorted(name for name in home.workers if name not in state.workers)
    if unknown:
        return (
            f"no worker {and_more(unknown, NAMED)} has joined this broker: start your home worker first"
            f" (`farflung join --home-of {submitter}`)"
        )
    foreign = sorted(name for name in home.workers if submitter not in state.workers[name].home_of)
    if foreign:
        return (
            f"no owner says that {and_more(foreign, NAMED, joint=' or ')} is at home for {submitter}: on your"
            f" own machine, `farflung join --home-of {submitter}` does"
        )
    if on and not set(on) & set(home.workers):
        return "no home worker is among those that the job may use: add one (--on)"
    return ""
