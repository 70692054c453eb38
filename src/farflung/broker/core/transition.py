"""Accumulate the facts and commands of one event."""

from __future__ import annotations

from farflung.broker.core.blobs import Digest, digest_of
from farflung.broker.core.events import Command, Send, SendToSubmitter
from farflung.broker.core.facts import (
    Fact,
    JobEnded,
    JobLoading,
    JobPlanning,
    JobRolledBack,
    VersionGivenUp,
)
from farflung.broker.core.records import Job, State
from farflung.broker.core.reducing.reducer import reduce_fact
from farflung.protocol.messages import Message

_CHANGES_BLOBS = (JobPlanning, JobLoading, JobRolledBack, VersionGivenUp, JobEnded)


class Transition:
    """Facts, commands and current state while one event is decided; `now` is in seconds since 1970."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.facts: list[Fact] = []
        self.commands: list[Command] = []
        self.blobs: dict[Digest, bytes] = {}
        self._before = state

    def emit(self, fact: Fact) -> None:
        """Add a fact and apply it to `state`."""
        self.state = reduce_fact(self.state, fact)
        self.facts.append(fact)

    def keep(self, blob: bytes) -> Digest:
        """Keep bytes that came with the event as long as a job needs them; the digest to name them by."""
        digest = digest_of(blob)
        self.blobs[digest] = blob
        return digest

    @property
    def before(self) -> State:
        """The state before the event."""
        return self._before

    def unneeded_blobs(self) -> frozenset[Digest]:
        """The blobs that jobs needed before and no job needs now."""
        jobs = {fact.job for fact in self.facts if isinstance(fact, _CHANGES_BLOBS)}
        held = [self._before.jobs[job].blobs.digests() for job in jobs & self._before.jobs.keys()]
        return frozenset[Digest]().union(*held) - self.state.blobs() if held else frozenset()

    def do(self, command: Command) -> None:
        """Add a command."""
        self.commands.append(command)

    def tell(self, job: str, message: Message) -> None:
        """Send a message to the job's submitter."""
        self.do(SendToSubmitter(job, message))

    def send_members(self, job: Job, message: Message) -> None:
        """Send a message to every connected worker that the job holds."""
        for name in job.members:
            worker = self.state.workers[name]
            if worker.connected and worker.job == job.job:
                self.do(Send(name, message))
