"""Which link belongs to whom: registered workers, and the submitters of open jobs."""

from __future__ import annotations

from farflung.broker.events import Admit, Command, Reject, Reply, Send, Tell
from farflung.protocol.messages import Denied, Message
from farflung.transport.link import Link


class Switchboard:
    """Links by worker and by job. One submitter may have several links, each with jobs of its own."""

    def __init__(self) -> None:
        self.workers: dict[str, Link] = {}
        self.jobs: dict[str, Link] = {}

    def is_worker(self, link: Link) -> bool:
        """Whether a worker has registered over this link and still is reached over it."""
        return self.workers.get(link.peer.id) is link

    def jobs_over(self, link: Link) -> list[str]:
        """The open jobs that were submitted over this link."""
        return [job for job, found in self.jobs.items() if found is link]

    def receiver(self, command: Command, origin: Link | None) -> tuple[Link, Message] | None:
        """The link a message goes to, as things stand now; None if nobody is there or it is no message."""
        match command:
            case Send(worker, message):
                link = self.workers.get(worker)
            case Tell(job, message):
                link = self.jobs.get(job)
            case Reply(message):
                link = origin
            case Reject(reason):
                link, message = origin, Denied(reason)
            case _:
                return None
        return None if link is None else (link, message)

    def replaced(self, command: Command, origin: Link | None) -> Link | None:
        """Note an admitted worker's link; the one it takes the place of is given back."""
        if not isinstance(command, Admit) or origin is None:
            return None
        older = self.workers.get(command.worker)
        self.workers[command.worker] = origin
        return older

    def drop(self, link: Link) -> None:
        """Forget a link that has closed."""
        if self.is_worker(link):
            del self.workers[link.peer.id]
        for job in self.jobs_over(link):
            del self.jobs[job]
