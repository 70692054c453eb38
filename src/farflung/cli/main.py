"""`farflung`: the commands, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import typer

import farflung
from farflung.cli.commands import (
    broker,
    capture,
    check,
    doctor,
    join,
    lab,
    plan,
    simulate,
    status,
    token,
    topology,
    train,
)
from farflung.cli.render.output import print_error
from farflung.errors import FarflungError

USAGE = 2
INTERRUPTED = 130

# Newer typers carry a copy of click, older ones use an installed one: this is the base of usage errors in
# either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Train one PyTorch model on devices that are far apart.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(token.app, name="token")
app.add_typer(lab.app, name="lab")
app.add_typer(topology.app, name="topology")
for _command in (
    train.train,
    check.check,
    capture.capture,
    plan.plan,
    simulate.simulate,
    broker.broker,
    join.join,
    status.status,
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
    code = run(sys.argv[1:])
    # Else the interpreter goes through every object that torch made, several times over, before it ends.
    gc.freeze()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; a user's mistake ends in one line and a code, a defect of ours in a traceback."""
    as_json = "--json" in arguments
    command = typer.main.get_command(app)
    try:
        # Not command.main(), which would turn Ctrl-C into a code without a word.
        with command.make_context("farflung", list(arguments)) as context:
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
        # Whoever read our output is gone; the interpreter must not try to flush to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _hint(error: Exception) -> str:
    """Where to look, if what is wrong is a name or a number of words: of a value the error says enough."""
    is_missing = hasattr(error, "param_type")  # of the class for what is missing, which typer hides
    is_value = isinstance(error, typer.BadParameter) and not is_missing
    return "" if is_value else f" ({_command_of(error)} --help lists what there is)"


def _command_of(error: Exception) -> str:
    """The command that was being read, as far as its name was: farflung lab run."""
    context: typer.Context | None = getattr(error, "ctx", None)
    return "farflung" if context is None else context.command_path


def _message(error: Exception) -> str:
    """What a usage error says, with the parameter it is about."""
    formatted = getattr(error, "format_message", None)
    words = str(formatted() if formatted else error).rstrip(".")
    return words.replace(": Value error, ", ": ", 1)  # how newer typers begin what is wrong with a choice
