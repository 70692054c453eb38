"""What a person may watch of a run. The command line shows it; a test or a notebook may take it elsewhere."""

from __future__ import annotations

from farflung.client.records import StepRow
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.schedule import Unit


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
