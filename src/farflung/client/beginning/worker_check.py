"""Check that the workers a run names have joined its broker.

This comes before the model is captured, which may take a minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from farflung.client.options.target import Target
from farflung.client.output.progress import ProgressCallback
from farflung.errors import JobError
from farflung.text import and_more

if TYPE_CHECKING:
    from farflung.plans import CodecWishes
    from farflung.protocol.messages import Status
    from farflung.transport.security.identity import Identity


async def ask_workers(identity: Identity, target: Target, wait: bool, tell: ProgressCallback) -> Status:
    """The broker's status, which must have the named workers unless the run is to `wait` for them.

    Raises
    ------
    JobError
        A named worker has not joined the broker.
    PlanError
        A codec is for a link between none of its workers.
    ConnectionFailed
        The broker cannot be reached.
    """
    from farflung.client.run.broker_client import ask_status

    status = await ask_status(identity)
    tell(status.workers_counted() if status.workers else "no worker has joined it yet")
    for line in check_workers(status, target.pool, identity.broker, wait):
        tell(line)
    if not target.pool:
        require_codec_ends(status, target.wishes.codecs)
    return status


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
        yield f"not connected: {and_more(away)}; the run waits for {them} to come back"


def require_codec_ends(status: Status, codecs: CodecWishes) -> None:
    """Refuse a codec for a link that ends at none of the connected workers.

    If no worker is connected yet, every link is accepted. PlanError names the link and the workers.
    """
    if there := [worker.worker for worker in status.workers if not worker.is_away]:
        codecs.require_ends(there)


def _refusal(status: Status, strange: Sequence[str], broker: str) -> str:
    there = [worker.worker + f" ({worker.state})" * worker.is_away for worker in status.workers]
    has = f"its workers are {and_more(there)}" if there else "no worker has joined it yet"
    return (
        f"no worker called {and_more(strange)} has joined the broker at {broker}: {has}. Start it with"
        f" `farflung join {broker} --name {strange[0]}`, or add --wait to wait for it"
    )
