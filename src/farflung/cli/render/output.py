"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from farflung.text import printable

JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON document.")]


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    sys.stdout.flush()


def print_error(message: str, as_json: bool) -> None:
    """The one line that a failure is told in; with `as_json` also as a document."""
    line = " ".join(message.split())
    if as_json:
        print_json({"error": line})
    note(f"error: {line}")


def note(line: str) -> None:
    """A line for the person at the terminal."""
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


def print_text(text: str) -> None:
    """Text that others had a hand in, on standard output: what a terminal would obey is written out."""
    typer.echo("".join(map(_visible, text)))


def _visible(letter: str) -> str:
    if letter.isprintable() or letter in "\n\t":
        return letter
    return letter.encode("unicode_escape").decode()


def loss_words(loss: float | None) -> str:
    """A loss, or why there is none."""
    return "none (emulated)" if loss is None else f"{loss:.4f}"
