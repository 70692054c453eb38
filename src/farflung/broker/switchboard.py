"""Which line belongs to whom: registered workers, and the submitters of open jobs."""

from __future__ import annotations

from farflung.broker.events import Admit, Command, Reject, Reply, Send, Tell
from farflung.broker.line import Line
from farflung.protocol.messages import Denied, Message


class Switchboard:
    """Lines by worker and by job. One submitter may have several lines, each with jobs of its own."""

    def __init__(self) -> None:
        self.workers: dict[str, Line] = {}
        self.jobs: dict[str, Line] = {}

    def is_worker(self, line: Line) -> bool:
        """Whether a worker has registered over this line and still is reached over it."""
        return self.workers.get(line.peer.id) is line

    def jobs_over(self, line: Line) -> list[str]:
        """The open jobs that were submitted over this line."""
        return [job for job, found in self.jobs.items() if found is line]

    def receiver(self, command: Command, origin: Line | None) -> tuple[Line, Message] | None:
        """The line a message goes to, as things stand now; None if nobody is there or it is no message."""
        match command:
            case Send(worker, message):
                line = self.workers.get(worker)
            case Tell(job, message):
                line = self.jobs.get(job)
            case Reply(message):
                line = origin
            case Reject(reason, for_now):
                line, message = origin, Denied(reason, for_now)
            case _:
                return None
        return None if line is None else (line, message)

    def replaced(self, command: Command, origin: Line | None) -> Line | None:
        """Note an admitted worker's line; the one it takes the place of is given back."""
        if not isinstance(command, Admit) or origin is None:
            return None
        older = self.workers.get(command.worker)
        self.workers[command.worker] = origin
        return older

    def drop(self, line: Line) -> None:
        """Forget a line that has closed."""
        if self.is_worker(line):
            del self.workers[line.peer.id]
        for job in self.jobs_over(line):
            del self.jobs[job]
