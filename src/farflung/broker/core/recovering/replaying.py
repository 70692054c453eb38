"""Which members run past units again, while all others keep their state. Pure.

A lost share is loaded from the newest stable version by the worker that takes over, which runs the units
since again: its neighbours still have what they sent then. SWIFT (Zhong et al., 2022) and MoEvement (2024)
replay like this in one cluster. A neighbour that has not gives up its own state and runs them again, too; so
the *lost set* grows, and if it is everybody, that is a rollback. Unless the units have the same bits, the
others could not go on, so those that take over must compute on the same kernels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from farflung.broker.core.records import Job, State
from farflung.broker.core.recovering import restoring
from farflung.plans import Plan
from farflung.runtime.backend import REPEATABLE


@dataclass(frozen=True)
class Takeover:
    """`plan` is that of the job with all places taken. Its `replayers` begin with the newest stable version.

    Those that lack their share of it get it from `donors`. All other members keep their state.
    """

    plan: Plan
    donors: dict[str, str]
    replayers: tuple[str, ...]


@dataclass(frozen=True)
class Obstacle:
    """Why no member can keep its state."""

    reason: str


def takeover(state: State, job: Job, lost: Collection[str] = ()) -> Takeover | Obstacle:
    """How the job goes on once the members `lost` are lost, if some others can keep their state."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None:
        return Obstacle("no version of the state is on workers' disks yet")
    if plan.sums:
        return Obstacle("pipelines add up their gradients, so no share runs again alone")
    first, units = version.next_unit, job.history.since(version.next_unit)
    if units.first != first or first + len(units.units) != job.next_unit:
        return Obstacle(f"the log no longer holds all decisions since step {version.step}")
    again = lost_set(job, plan, {*lost, *job.without_state})
    if units.units and not all(_repeats(state, job, name) for name in again):
        return Obstacle("a GPU computes other bits when it repeats a step (unless the job is deterministic)")
    if units.units and _noise_matters(job, plan, again):
        return Obstacle("no other worker draws the noise on what left home again")
    staying = [name for name in plan.workers() if name not in again]
    if not staying:
        return Obstacle("no worker has kept what it sent")
    if not all(state.workers[name].connected or state.workers[name].away for name in staying):
        return Obstacle("others are lost, too")
    found = restoring.seating(state, job, staying, _present(state, job, again - set(lost)))
    if found is None:
        return Obstacle("no idle worker computes just like the lost one")
    seats = found.plan.seats()
    takers = {seats[segment] for segment, name in plan.seats().items() if name in again}
    replayers = tuple(name for name in found.plan.workers() if name in takers)
    return Takeover(found.plan, found.donors, replayers)


def _repeats(state: State, job: Job, member: str) -> bool:
    """Whether a device like a member's computes the same bits again."""
    return job.training.deterministic or state.workers[member].device.kind in REPEATABLE


def _noise_matters(job: Job, plan: Plan, again: Collection[str]) -> bool:
    """Whether members would compute other bits if past units ran again with other noise on what leaves home.

    Home workers draw it anew. What they compute does not depend on it, but what their codecs remember does,
    and so does what strangers compute that run the same units again.
    """
    home = plan.at_home().intersection(again)
    if not home or not job.training.home_noise:
        return False
    near = set().union(*(plan.neighbours(name) for name in home))
    return bool(job.training.codecs) or not near.isdisjoint(set(again) - home)


def taker_of(job: Job, found: Takeover) -> str:
    """A worker that takes a place in the plan, and was no member before."""
    assert job.plan is not None
    return next(name for name in found.replayers if name not in job.plan.workers())


def lost_set(job: Job, plan: Plan, lost: Collection[str]) -> set[str]:
    """The members that run past units again if these do: with them the neighbours that have not kept all
    that they sent, and so on.
    """
    version, found, added = job.versions.stable, set(lost), set(lost)
    assert version is not None
    while added and version.next_unit < job.next_unit:
        near = set().union(*(plan.neighbours(name) for name in added)) - found
        added = {name for name in near if not _has_kept(job, name, version.next_unit)}
        found |= added
    return found


def _has_kept(job: Job, name: str, first: int) -> bool:
    """Whether a member has what it sent from unit `first` on."""
    return job.logged.get(name, first + 1) <= first


def _present(state: State, job: Job, again: Collection[str]) -> list[str]:
    """The members that run past units again themselves: they are there."""
    found = (state.workers[name] for name in again)
    return [worker.worker for worker in found if worker.connected and worker.job == job.job]
