"""`farflung job`: list jobs, and end one from any terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.commands.status import any_identity
from farflung.cli.process.identity import (
    BrokerOption,
    FolderOption,
    TokenText,
    has_authority,
    obtain_identity,
    operator_identity,
)
from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.errors import ConnectionFailed, IdentityError
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.protocol.viewer import JobStatus
    from farflung.transport.security.identity import Identity

app = typer.Typer(help="Jobs of a broker: list them, and end one.", rich_markup_mode=None)

PAUSE_SECONDS = 0.5
WAIT_SECONDS = 600
"""How long `cancel` waits for the weights to come to the submitter; the job ends all the same."""


@app.command("list")
def list_them(
    everything: Annotated[bool, typer.Option("--all", help="Also list each job that is over.")] = False,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs that run or wait, and the newest that are over.

    On the broker's own machine you need no token.
    """
    from farflung.cli.render.status import job_lines
    from farflung.client.run.broker_client import ask_status

    async def ask() -> list[JobStatus]:
        return (await ask_status(await any_identity(broker, token, folder))).jobs

    jobs = asyncio.run(ask())
    if as_json:
        print_json({"jobs": jobs})
        return
    for line in job_lines(jobs, everything, members=True):
        print_text(line)


@app.command()
def cancel(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, as `farflung job list` has it.")],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, in one line; the job's submitter sees it.")
    ] = "",
    now: Annotated[
        bool, typer.Option("--now", help="End it at once: its weights do not come to its submitter first.")
    ] = False,
    broker: BrokerOption = None,
    token: TokenText = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a job from any terminal, as its submitter or as an operator.

    Its submitter gets the weights of the last step first, as after Ctrl-C, and keeps its checkpoints. The
    command waits until the job is over; Ctrl-C ends only the command.
    """
    found = asyncio.run(_cancel(job, reason, now, broker, token, folder))
    if as_json:
        print_json(found)
    else:
        print_text(f"{found.job} is {found.state}{found.reason and f': {found.reason}'}")


async def _cancel(
    job: str, reason: str, now: bool, broker: str | None, token: str | None, folder: Path | None
) -> JobStatus:
    from farflung.client.run.broker_client import ask_status, ask_to_cancel
    from farflung.protocol.viewer import OVER

    identity = await _identity(job, broker, token, folder)
    answer = await ask_to_cancel(identity, job, reason, now)
    if answer.words:
        note(f"{job} ends: {answer.words}")
    state = ""
    for _ in range(round(WAIT_SECONDS / PAUSE_SECONDS)):
        jobs = (await ask_status(identity)).jobs
        found = next((one for one in jobs if one.job == job), None)
        if found is None:
            raise ConnectionFailed(f"{job} is not among the jobs that the broker lists any more")
        if (state := found.state) in OVER:
            return found
        await asyncio.sleep(PAUSE_SECONDS)
    raise ConnectionFailed(f"{job} is still {state}: `farflung job cancel {job} --now` ends it at once")


async def _identity(job: str, broker: str | None, token: str | None, folder: Path | None) -> Identity:
    """That of an operator if there is one here, or can be; else that of the submitter of this machine."""
    from farflung.transport.security.identity import Identity

    command, submitter = f"farflung job cancel {job}", folder_of("submitter", folder)
    if token is not None:
        from farflung.transport.security.tokens import Token

        role = Token.parse(token).role
        if role not in ("operator", "submitter"):
            raise IdentityError(f"{role}s cannot end jobs: use the token of an operator")
        return await obtain_identity(folder_of(role, folder), role, broker, token)
    operator = folder_of("operator", folder)
    is_operator = (operator / "identity.json").exists() or has_authority(folder_of("broker", None))
    if folder is not None:
        is_operator = has_authority(folder) or Identity.load(folder, ended_too=True).role == "operator"
    if (submitter / "identity.json").exists() and not is_operator:
        return await obtain_identity(submitter, "submitter", broker, None)
    return await operator_identity(broker, None, operator, command)
