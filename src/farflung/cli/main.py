"""The `farflung` app: its commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import typer

import farflung
from farflung.cli.commands import (
    attach,
    broker,
    capture,
    check,
    doctor,
    drain,
    export,
    job,
    join,
    lab,
    launch,
    member,
    plan,
    report,
    simulate,
    status,
    token,
    topology,
    trace,
    train,
)
from farflung.cli.render.output import print_error
from farflung.errors import FarflungError
from farflung.heap import collect_rarely

USAGE = 2
LAST_TASK_SECONDS = 2.0
COMPUTING = ("farflung-compute", "farflung-codec")
"""The names of a worker's threads that are in a framework's code most of the time."""
INTERRUPTED = 130

# Newer versions of typer carry a copy of click, older ones use an installed one: this is the base class of
# usage errors in both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Train one PyTorch model on devices that are far apart.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(broker.app, name="broker")
app.add_typer(token.app, name="token")
app.add_typer(member.app, name="member")
app.add_typer(job.app, name="job")
app.add_typer(launch.app, name="launch")
app.add_typer(lab.app, name="lab")
app.add_typer(topology.app, name="topology")
for _command in (
    train.train,
    export.export,
    report.report,
    check.check,
    capture.capture,
    plan.plan,
    simulate.simulate,
    join.join,
    drain.drain,
    status.status,
    trace.trace,
    attach.attach,
    doctor.doctor,
):
    app.command()(_command)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"farflung {farflung.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """The entry point: runs the command line and exits with its code."""
    if sys.platform == "win32":
        print_error("farflung needs Linux or macOS: on Windows run it in WSL 2", as_json=False)
        sys.exit(USAGE)
    collect_rarely()
    code = run(sys.argv[1:])
    # Otherwise the interpreter scans every object that torch made, several times, before it exits.
    gc.freeze()
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit with this code, also if a worker's thread still computes.

    When the interpreter ends, it ends such a thread inside torch, which aborts the process ("terminate called
    without an active exception").
    """
    until = time.monotonic() + LAST_TASK_SECONDS
    mine = [one for one in threading.enumerate() if one.daemon and one.name in COMPUTING]
    for thread in mine:
        thread.join(max(0.0, until - time.monotonic()))
    if not any(thread.is_alive() for thread in mine):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; a user's mistake prints one line, our own a traceback."""
    as_json = "--json" in arguments
    command = typer.main.get_command(app)
    try:
        # Not command.main(), which would turn Ctrl-C into an exit code without a message.
        with command.make_context("farflung", list(arguments), obj=list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except _UsageError as error:
        print_error(f"{_message(error)}{_hint(error)}", as_json)
        return USAGE
    except FarflungError as error:
        print_error(str(error), as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print_error("interrupted", as_json)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone; the interpreter must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _hint(error: Exception) -> str:
    """A pointer to --help for a wrong name or number of arguments; a wrong value explains itself."""
    is_missing = hasattr(error, "param_type")  # only click's MissingParameter has it; typer hides the class
    is_value = isinstance(error, typer.BadParameter) and not is_missing
    return "" if is_value else f" (see {_command_of(error)} --help)"


def _command_of(error: Exception) -> str:
    """The command whose arguments were being parsed, such as "farflung lab run"."""
    context: typer.Context | None = getattr(error, "ctx", None)
    return "farflung" if context is None else context.command_path


def _message(error: Exception) -> str:
    """The message of a usage error, with the parameter that it is about."""
    formatted = getattr(error, "format_message", None)
    words = str(formatted() if formatted else error).rstrip(".")
    return words.replace(": Value error, ", ": ", 1)  # newer versions of typer add this to an invalid choice
