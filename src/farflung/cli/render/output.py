"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import typer

from farflung.text import printable

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SummaryJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the summary as a JSON document at the end.")
]


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str, as_json: bool) -> None:
    """Print an error as one line; with `as_json` also as a JSON document."""
    line = " ".join(message.split())
    if as_json:
        print_json({"error": line})
    note(f"error: {line}")


def note(line: str) -> None:
    """Print a line for the user on standard error; a reader that has closed it ends no command."""
    with suppress(BrokenPipeError):
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()


def print_text(text: str) -> None:
    """Print text from untrusted sources to standard output, with control characters escaped."""
    typer.echo("".join(map(_visible, text)))


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in "\n\t":
        return letter
    return letter.encode("unicode_escape").decode()


def metric_words(metrics: Mapping[str, float]) -> str:
    """The metrics of an evaluation, to be put behind its loss."""
    return "".join(f"  {name} {value:.4g}" for name, value in metrics.items())


def loss_words(loss: float | None) -> str:
    """A loss as text, or why there is none."""
    return "none (emulated)" if loss is None else f"{loss:.4f}"
