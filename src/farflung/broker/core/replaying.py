"""Who takes over a lost worker's share while all other members keep their state. Pure.

The one that takes over loads the share from the newest stable version, and runs the units since again,
alone: its neighbours still have what they sent then. SWIFT (Zhong et al., 2022) and MoEvement (2024) replay
like this in one cluster. Unless that has the same bits, the others could not go on, so it must compute on the
same kernels.
"""

from __future__ import annotations

from farflung.broker.core import restoring
from farflung.broker.core.records import COLLECTING, LOADING, RUNNING, Job, State
from farflung.broker.core.restoring import Seating
from farflung.plans import Plan


def takeover(state: State, job: Job, lost: str) -> Seating | None:
    """The job's plan with the `lost` member replaced; None if some other member would have to go back."""
    version, plan = job.versions.stable, job.plan
    if version is None or plan is None or lost not in plan.workers():
        return None
    staying = [name for name in plan.workers() if name != lost]
    first, units = version.next_unit, job.history.since(version.next_unit)
    is_known = units.first == first and first + len(units.units) == job.next_unit
    if not is_known or not _hold_state(state, job, staying) or not _have_sent(job, plan, lost, first):
        return None
    found = restoring.seating(state, job, staying)
    return found if found is not None and _computes_alike(state, found, lost, staying) else None


def taker_of(job: Job, plan: Plan) -> str:
    """The worker of `plan` that is no member of the job's own plan."""
    assert job.plan is not None
    return next(name for name in plan.workers() if name not in job.plan.workers())


def _hold_state(state: State, job: Job, staying: list[str]) -> bool:
    """Whether the members that stay hold the state of the first undecided unit."""
    is_whole = job.state in (RUNNING, COLLECTING) or (job.state == LOADING and job.keeps and not job.replayer)
    return is_whole and all(state.workers[name].connected for name in staying)


def _have_sent(job: Job, plan: Plan, lost: str, first: int) -> bool:
    """Whether the neighbours have what they sent to the lost member from unit `first` on."""
    if first == job.next_unit:
        return True
    return all(job.logged.get(name, first + 1) <= first for name in plan.neighbours(lost))


def _computes_alike(state: State, found: Seating, lost: str, staying: list[str]) -> bool:
    """Whether the worker that takes over is known to compute as the lost one did."""
    taker = next(name for name in found.plan.workers() if name not in staying)
    own, other = state.workers[taker].device.kernels, state.workers[lost].device.kernels
    return bool(own) and own == other
