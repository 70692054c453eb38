"""What the broker's state holds of members that it does not trust."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.protocol.fields import one_line
from farflung.protocol.membership import MOST_REFUSAL, until_allowed

MOST_SUSPICIONS = 3
"""After so many suspicions a worker gets no jobs until an operator allows it, unless the broker is told
another number.
"""


@dataclass(frozen=True)
class Removal:
    """That the member `member` was removed `at` (seconds since 1970) by an operator, for this reason."""

    member: str
    role: str
    at: float
    operator: str
    reason: str

    @property
    def words(self) -> str:
        """Who removed it and why, in words that follow on its name."""
        why = f": {self.reason}" if self.reason else ""
        return f"was removed by operator {self.operator}{why}"

    @property
    def refusal(self) -> str:
        """What it hears: who removed it and why, and by whose word it comes back."""
        back = until_allowed(self.member)
        return one_line(f"{self.role} {self.member} {self.words}")[: MOST_REFUSAL - len(back)] + back


@dataclass(frozen=True)
class Blame:
    """That a worker made an attempt of a job fail at `unit`, as it said for this reason.

    Whether the worker or the job is at fault is known once the job gets past that unit without it, or not. If
    it is `excused`, what the submitter sent is at fault, as the worker said: it will not be suspected.
    """

    reason: str
    unit: int
    excused: bool = False


@dataclass(frozen=True)
class Suspicion:
    """How many attempts of jobs a worker has made fail that others got through; the newest, `at` (seconds
    since 1970), of `job` and for this `reason`. It is `proven` if two others found that it did other work
    than it said.
    """

    count: int
    at: float
    job: str
    reason: str
    proven: bool = False

    @property
    def words(self) -> str:
        """What is held against the worker, in words that follow on "it"."""
        if self.proven:
            return f"did other work than it said (in {self.job}: {self.reason})"
        times = "once" if self.count == 1 else f"{self.count} times"
        newest = f"of {self.job}: {self.reason}"
        return f"made an attempt of a job fail that others got through, {times} (the last one {newest})"
