"""Progress of a run: `Observer` for the run itself, and plain callbacks for capturing and planning.

The command line implements `Observer` for a terminal and for log files; a notebook can bring its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.client.output.records import StepRow
from farflung.protocol.messages import CodecsChosen, Planned
from farflung.schedule import Unit

ProgressCallback = Callable[[str], None]


def no_progress(words: str) -> None:
    """A progress callback that does nothing."""


def goes_on(words: str, before: str) -> bool:
    """Whether `words` continue the message before, as "planning: 12 plans" continues "planning"."""
    return bool(before) and words.startswith(f"{before}: ")


class Search:
    """Describes the progress of a search; implements `planner.assignment.Watch`."""

    def __init__(self, tell: ProgressCallback, words: str) -> None:
        self._tell, self._search, self._words = tell, words, words
        self._plans, self._best = 0.0, float("inf")
        tell(words)

    def __call__(self, plans: float, step_seconds: float) -> None:
        """Report that more plans were evaluated."""
        self._plans += plans
        self._best = min(self._best, step_seconds)
        best = f", best {self._best:.3g} s a step" if self._best < float("inf") else ""
        self._tell(f"{self._words}: {self._plans:.0f} plans{best}")

    def stage(self, words: str) -> None:
        """Report what the search looks at now; its plans count with those of the stages before."""
        self._words = f"{self._search}, {words}"
        self._tell(self._words)


class Observer:
    """Base class for objects that follow a run.

    The methods are called on the event loop and must return soon. Here they do nothing.
    """

    def waiting(self, words: str) -> None:
        """The job waits, as the broker describes it ("waiting for 1 more worker (have 1, the job needs 2)").

        A message that repeats the one before and goes on after a colon reports progress of the same thing.
        """

    def accepted(self, job: str) -> None:
        """The broker has the job, under this id."""

    def planned(self, planned: Planned) -> None:
        """There is a plan, which says where each segment runs."""

    def loading(self, sent_bytes: int, total_bytes: int) -> None:
        """Workers have received this much of the initial state; the total falls by what they have already."""

    def running(self) -> None:
        """Every worker has loaded; the first unit begins."""

    def working(self, unit: Unit, microbatches: int) -> None:
        """A unit has begun (`microbatches` 0), or has finished that many microbatches; a merge has none."""

    def stepped(self, row: StepRow) -> None:
        """A step was applied everywhere."""

    def validated(self, step: int, loss: float | None, metrics: Mapping[str, float]) -> None:
        """The model was evaluated after `step` steps; emulated devices have neither `loss` nor `metrics`."""

    def merged(self, step: int, bytes_sent: int) -> None:
        """Replicas that train apart have merged after `step` steps, for which workers sent `bytes_sent`."""

    def checkpointed(self, step: int, place: str) -> None:
        """The state after `step` steps is saved in that folder or at that URL."""

    def noted(self, words: str) -> None:
        """Something happened that was to be expected, such as a move to a better plan; nothing is wrong."""

    def warned(self, words: str) -> None:
        """Something happened that the user should know of; the run goes on."""

    def returned(self, job: str, step: int) -> None:
        """This process is the submitter of a job again, `step` steps of which it has recorded."""

    def codecs_chosen(self, chosen: CodecsChosen) -> None:
        """Codec pairs of links have changed, or there is a warning about them."""

    def collecting(self, received_bytes: int, total_bytes: int) -> None:
        """This much of the trained state has been received."""

    def evaluating(self, words: str) -> None:
        """This machine evaluates the weights that came home, which may take a while: `words` say what for."""

    def ended(self, state: str, reason: str) -> None:
        """The run has ended: done, failed, cancelled, or left to the broker, and why in one line."""

    def close(self) -> None:
        """The run is over, and nothing more comes."""


class Observers(Observer):
    """Several observers of one run, each of which hears everything, in this order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers


def _telling_all(name: str) -> Callable[..., None]:
    """A method of `Observers` that calls the one with this name of each observer."""

    def tell(self: Observers, *arguments: object) -> None:
        for observer in self._observers:
            getattr(observer, name)(*arguments)

    return tell


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(Observers, _name, _telling_all(_name))
