"""The state of a job's codec tuning: units that wait, whether it is busy, and results to apply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung.planner.codecs.tuner import CodecTuner, FinishedUnit, Verdict

MOST_WAITING = 64
"""Units that may wait for codec tuning; beyond that the oldest are dropped. A choice takes up to a second."""


@dataclass(frozen=True)
class TuningState:
    """Codec tuning of one job. It runs outside the event loop; results are applied with a later unit.

    `waiting` are units that it has not examined yet. `is_busy` says that it is examining some. `pending` is
    its result that has not been applied yet.
    """

    steering: CodecTuner
    waiting: tuple[FinishedUnit, ...] = ()
    is_busy: bool = False
    pending: Verdict | None = None

    def with_unit(self, unit: FinishedUnit) -> TuningState:
        """Add a unit to examine."""
        return replace(self, waiting=(*self.waiting, unit)[-MOST_WAITING:])

    def with_result(self, steering: CodecTuner, verdict: Verdict) -> TuningState:
        """Take a result, and merge it with an earlier one that was not applied yet."""
        pending = verdict if self.pending is None else self.pending.then(verdict)
        return replace(self, steering=steering, is_busy=False, pending=pending if pending.is_news else None)
