"""Laws of members that operators have removed."""

from __future__ import annotations

from collections import Counter

from farflung.broker.core import facts
from farflung.broker.core.records import Job, State
from farflung.broker.core.trusting.records import MOST_SUSPICIONS


class TrustLaws:
    """Follows who is removed or suspected; `trouble` says what is wrong with a stored fact, if anything."""

    def __init__(self) -> None:
        self.removed: set[str] = set()
        self.suspected: Counter[str] = Counter()
        self._blamed: dict[tuple[str, str], int] = {}
        self._decided: dict[str, int] = {}

    def trouble(self, fact: facts.AnyDecision) -> str:
        """None joins or gets work that is removed, suspended, or blamed by the job.

        A worker is suspected only if the job has got past the unit at which it made it fail.
        """
        used, job = set[str](), ""
        match fact:
            case facts.WorkerBlamed(job=job, worker=worker, unit=unit):
                self._blamed[job, worker] = unit
                return ""
            case facts.WorkerSuspected(proven=True):
                return f"{fact}, and all are honest"
            case facts.ShareChecked(checker=checker, agrees=False) if checker:
                return f"{fact}, and all are honest"
            case facts.WorkerSuspected(job=job, worker=worker):
                self.suspected[worker] += 1
                unit = self._blamed.pop((job, worker))
                return "" if self._decided.get(job, -1) >= unit else f"{fact} before unit {unit} was decided"
            case facts.UnitDecided(job=job, unit=unit):
                self._decided[job] = unit
            case facts.MemberRemoved(member=member):
                is_new, self.removed = member not in self.removed, self.removed | {member}
                return "" if is_new else f"{member} was removed already"
            case facts.MemberAllowed(member=member):
                self.removed -= {member}
                self.suspected.pop(member, None)
                self._blamed = {pair: unit for pair, unit in self._blamed.items() if pair[1] != member}
            case facts.WorkerAdmitted(worker=worker):
                return f"{worker} joins, and is removed" if worker in self.removed else ""
            case facts.JobPlanning(job=job, workers=workers):
                used = {*workers}
            case facts.JobLoading(job=job, plan=plan) | facts.JobRestoring(job=job, plan=plan):
                used = {*plan.workers()}
        shunned = {worker for worker in used if self.suspected[worker] >= MOST_SUSPICIONS}
        shunned |= self.removed | {worker for blamed, worker in self._blamed if blamed == job}
        return f"{fact} uses {used & shunned}" if used & shunned else ""


def needs_others(state: State, job: Job) -> bool:
    """Whether a job that has lost no workers asks for more than are there and may run it."""
    able = [
        name
        for name, worker in state.workers.items()
        if worker.connected
        and worker.leaving is None
        and worker.emulated == job.training.emulated
        and not state.is_suspended(name)
        and name not in job.blamed
        and (not job.on or name in job.on)
    ]
    return job.waits_since is None and len(able) < (len(job.on) or job.asked or max(1, job.wishes.replicas))
