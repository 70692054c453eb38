"""The state of a job's codec tuning: units that wait, whether it is busy, and results to apply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung.planner.codecs.steering import Over, Steering, Verdict

MOST_UNSEEN = 64
"""Units that may wait for codec tuning; beyond that the oldest are dropped. A choice takes up to a second."""


@dataclass(frozen=True)
class TuningState:
    """Codec tuning of one job. It runs outside the event loop; results are applied with a later unit.

    `unseen` are units that it has not examined yet. `is_busy` says that it is examining some. `due` is its
    result that has not been applied yet.
    """

    steering: Steering
    unseen: tuple[Over, ...] = ()
    is_busy: bool = False
    due: Verdict | None = None

    def shown(self, over: Over) -> TuningState:
        """Add a unit to examine."""
        return replace(self, unseen=(*self.unseen, over)[-MOST_UNSEEN:])

    def found(self, steering: Steering, verdict: Verdict) -> TuningState:
        """Take a result, and merge it with an earlier one that was not applied yet."""
        due = verdict if self.due is None else self.due.then(verdict)
        return replace(self, steering=steering, is_busy=False, due=due if due.is_news else None)
