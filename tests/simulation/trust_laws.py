"""Laws of members that operators have removed."""

from __future__ import annotations

from farflung.broker.core import facts


class TrustLaws:
    """Follows who is removed; `trouble` says what is wrong with a stored fact, and nothing if all is well."""

    def __init__(self) -> None:
        self.removed: set[str] = set()

    def trouble(self, fact: facts.AnyDecision) -> str:
        """No member is removed twice, or allowed that is not; none that is removed joins or gets work."""
        match fact:
            case facts.MemberRemoved(member=member):
                is_new, self.removed = member not in self.removed, self.removed | {member}
                return "" if is_new else f"{member} was removed already"
            case facts.MemberAllowed(member=member):
                was_removed, self.removed = member in self.removed, self.removed - {member}
                return "" if was_removed else f"{member} was not removed"
            case facts.WorkerAdmitted(worker=worker):
                used = {worker}
            case facts.JobPlanning(workers=workers):
                used = {*workers}
            case facts.JobLoading(plan=plan) | facts.JobRestoring(plan=plan) | facts.JobReplaying(plan=plan):
                used = {*plan.workers()}
            case _:
                used = set()
        return f"{fact} uses members that are removed" if used & self.removed else ""
