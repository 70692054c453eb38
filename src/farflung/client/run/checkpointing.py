"""When a run saves checkpoints, and which one it goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.client.output.checkpoints.contents import Checkpoint
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.history import Recorded


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save: after each `steps` steps, each `seconds` seconds (0: never), and at the `end`."""

    steps: int = 0
    seconds: float = 0.0
    end: bool = True

    @property
    def saves(self) -> bool:
        """Whether a run ever saves a checkpoint."""
        return self.end or self.steps > 0 or self.seconds > 0

    @property
    def copies(self) -> int:
        """Copies of their state that workers need memory for while training goes on."""
        return 1 if self.steps or self.seconds else 0


NEVER = CheckpointPolicy(end=False)


@dataclass(frozen=True)
class Place:
    """The place of a job's submitter, which a run takes again: the job, and what its folder has recorded."""

    job: str
    recorded: Recorded


@dataclass(frozen=True)
class Checkpointing:
    """How one run saves its state, and where it begins.

    Parameters
    ----------
    policy, store
        When to save, and where.
    run
        The random name that the run keeps when it is resumed.
    resumed
        The checkpoint to go on from; None for a new run.
    attempts
        How many attempts the run has had before; the next ones are numbered after them.
    place
        The job of the run that still stands at the broker; None to submit one.
    """

    policy: CheckpointPolicy
    store: CheckpointStore
    run: str
    resumed: Checkpoint | None = None
    attempts: int = 0
    place: Place | None = None
