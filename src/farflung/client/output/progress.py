"""What is being done, told in words to whoever waits for it.

What a person may watch of a run. The command line shows it; a test or a notebook may take it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from farflung.client.output.records import StepRow
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.schedule import Unit

ProgressCallback = Callable[[str], None]


def no_progress(words: str) -> None:
    """Progress that nobody wants to hear of."""


def goes_on(words: str, before: str) -> bool:
    """Whether words say how far that is what was said before: "planning: 12 plans" after "planning"."""
    return bool(before) and words.startswith(f"{before}: ")


class Search:
    """Tells in words how a search gets on, as `planner.assignment.Watch` hears of it."""

    def __init__(self, tell: ProgressCallback, words: str) -> None:
        self._tell, self._words = tell, words
        self._plans, self._best = 0.0, float("inf")
        tell(words)

    def __call__(self, plans: float, step_seconds: float) -> None:
        """More plans were looked at."""
        self._plans += plans
        self._best = min(self._best, step_seconds)
        best = f", best {self._best:.3g} s a step" if self._best < float("inf") else ""
        self._tell(f"{self._words}: {self._plans:.0f} plans{best}")


class Observer:
    """Is told how a run goes, on the event loop; each method does nothing here and must return soon."""

    def waiting(self, words: str) -> None:
        """The job's state in the broker's words ("waiting for 1 more worker (have 1, the job needs 2)").

        What begins as the words before and goes on after a colon says how far that is.
        """

    def planned(self, planned: Planned) -> None:
        """Where each segment runs."""

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        """How much of the model's first state is with the workers."""

    def running(self) -> None:
        """Every worker has loaded; the first unit begins."""

    def working(self, unit: Unit, microbatches: int) -> None:
        """A step or an evaluation has begun (`microbatches` 0), or so many of it are through the model."""

    def stepped(self, row: StepRow) -> None:
        """A step was applied everywhere."""

    def validated(self, step: int, loss: float | None) -> None:
        """The model after `step` steps was evaluated; emulated devices know no loss."""

    def warned(self, words: str) -> None:
        """Something that the user should know of happened; the run goes on."""

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        """Links are written otherwise, or something about their codecs is worth a warning."""

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        """How much of the trained state is back."""

    def close(self) -> None:
        """The run is over."""
