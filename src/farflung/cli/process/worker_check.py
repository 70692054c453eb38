"""Check that the workers a run names have joined its broker, before capturing the model takes a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from farflung.errors import JobError
from farflung.text import and_more

if TYPE_CHECKING:
    from farflung.plans import CodecWishes
    from farflung.protocol.messages import Status


def check_workers(status: Status, named: Sequence[str], broker: str, wait: bool) -> Iterator[str]:
    """Notes on named workers that are not connected, one line each.

    Raises
    ------
    JobError
        One of them never joined the broker, and `wait` is false.
    """
    known = {worker.worker: worker for worker in status.workers}
    if strange := [id for id in named if id not in known]:
        if not wait:
            raise JobError(_refusal(status, strange, broker))
        yield f"waiting for {and_more(strange)} to join (--wait)"
    if away := [id for id in named if id in known and known[id].is_away]:
        them = "them" if len(away) > 1 else "it"
        yield f"away: {and_more(away)}; known to this broker, so the run waits for {them}"


def require_ends(status: Status, codecs: CodecWishes) -> None:
    """Refuse a codec for a link that ends at none of the connected workers.

    If no worker is connected yet, every link is accepted. PlanError names the link and the workers.
    """
    if there := [worker.worker for worker in status.workers if not worker.is_away]:
        codecs.require_ends(there)


def _refusal(status: Status, strange: Sequence[str], broker: str) -> str:
    there = [f"{worker.worker} (away)" if worker.is_away else worker.worker for worker in status.workers]
    has = f"its workers are {and_more(there)}" if there else "no worker has joined it yet"
    return (
        f"no worker called {and_more(strange)} has joined the broker at {broker}: {has}; name one as it joins"
        f" (farflung join {broker} --name {strange[0]}), or add --wait if it is still to join"
    )
