"""How the links of a job are steered: what was chosen so far, what is being thought over, what is due."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung.planner.codecs.steering import Over, Steering, Verdict

MOST_UNSEEN = 64
"""Units that wait to be looked at; a choice takes a second at most, so of more the oldest are let go."""


@dataclass(frozen=True)
class TuningState:
    """The steering of a job: a choice is made off the loop, and rides on the decision of a unit after it.

    `unseen` are units that it has not been shown yet; `is_busy` while it looks at some. `due` is what it has
    found and nobody was told.
    """

    steering: Steering
    unseen: tuple[Over, ...] = ()
    is_busy: bool = False
    due: Verdict | None = None

    def shown(self, over: Over) -> TuningState:
        """With one more unit to look at."""
        return replace(self, unseen=(*self.unseen, over)[-MOST_UNSEEN:])

    def found(self, steering: Steering, verdict: Verdict) -> TuningState:
        """It has looked at what it was shown: its verdict is due, with what was due before."""
        due = verdict if self.due is None else self.due.then(verdict)
        return replace(self, steering=steering, is_busy=False, due=due if due.is_news else None)
