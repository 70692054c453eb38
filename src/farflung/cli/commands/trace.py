"""`farflung trace`: what each worker of a job does in one step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.commands.status import any_identity
from farflung.cli.process.identity import BrokerOption, FolderOption, TokenText
from farflung.cli.render.output import JsonOption, note, print_json, print_text

if TYPE_CHECKING:
    from farflung.protocol.timeline import StepTimeline


def trace(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="A job that runs, as `farflung status` names it.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the step as a trace file: https://ui.perfetto.dev opens it."
        ),
    ] = None,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch one step of a job: when each worker computes, what it waits for, and what crosses its links.

    It takes as long as a step or two, and costs each worker a message and its answer.
    """
    found = asyncio.run(_ask(job, broker, token, folder))
    if out is not None:
        from farflung.files import write_atomically
        from farflung.pages.trace_file import trace_of

        write_atomically(out.expanduser(), trace_of(found))
    if as_json:
        print_json(found)
        return
    from farflung.cli.render.trace import trace_lines

    for line in trace_lines(found):
        print_text(line)
    if out is not None:
        note(f"wrote {out}: open it at https://ui.perfetto.dev, which reads it in your browser")


async def _ask(job: str, broker: str | None, token: str | None, folder: Path | None) -> StepTimeline:
    from farflung.client.run.broker_client import ask_step

    return await ask_step(await any_identity(broker, token, folder), job)
