"""`farflung drain`: let a worker leave the fleet in good order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.process.identity import (
    BrokerOption,
    FolderOption,
    TokenText,
    operator_identity,
)
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.errors import ConnectionFailed, NotHandedOver
from farflung.protocol.membership import MOST_WITHIN_SECONDS, WITHIN_SECONDS
from farflung.text import duration_words
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.protocol.viewer import WorkerStatus

PAUSE_SECONDS = 0.5
INTERRUPTED = 130


def drain(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Id of the worker, as `farflung status` has it.")
    ],
    within: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_WITHIN_SECONDS,
            metavar="SECONDS",
            help="How long its share of a job may take to go to others; 0: it leaves at once.",
        ),
    ] = WITHIN_SECONDS,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a worker leave in good order: its share of a job goes to others first.

    It waits until the worker has left, and says what that waits for. It ends with code 1 if the worker left
    with a share that no other took, or with the only copies of a job's state. Ctrl-C ends only this command.
    """
    asked = Asked()
    try:
        left = asyncio.run(_drain(worker, within, broker, token, folder_of("operator", folder), asked))
    except KeyboardInterrupt:
        if not asked.done:
            note(f"{worker} was not asked to leave")
        else:
            note(f"{worker} leaves all the same, within {duration_words(within)}: `farflung status` shows it")
        raise typer.Exit(INTERRUPTED) from None
    in_order = left.in_order and not left.is_lost
    if as_json:
        print_json(left)
        raise typer.Exit(0 if in_order else NotHandedOver.exit_code)
    if not in_order:
        raise NotHandedOver(f"{worker} has left, but not in good order: {left.reason}")
    print_text(f"{worker} has left: {left.reason}")


@dataclass
class Asked:
    """Whether the broker knows of the wish: then the worker leaves without this command, too."""

    done: bool = False


async def _drain(
    worker: str, within: int, broker: str | None, token: str | None, folder: Path, asked: Asked
) -> WorkerStatus:
    from farflung.client.run.broker_client import ask_status, ask_to_drain

    identity = await operator_identity(broker, token, folder, "farflung drain WORKER")
    await ask_to_drain(identity, worker, within)
    asked.done = True
    said, until = "", None
    while True:
        status = await ask_status(identity)
        if until is None:
            until = time.monotonic() + within + 2 * status.timeouts["lease_seconds"]
        (found,) = [one for one in status.workers if one.worker == worker]
        if found.is_away and found.state == "left":
            return found
        if found.reason and found.reason != said:
            said = found.reason
            note(f"{worker}: {found.state}: {said}")
        if time.monotonic() > until:
            raise ConnectionFailed(f"{worker} is {found.state} after {within} s: `farflung status` says more")
        await asyncio.sleep(PAUSE_SECONDS)
