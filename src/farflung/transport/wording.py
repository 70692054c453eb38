"""What others wrote, made fit for logs and terminals."""

from __future__ import annotations


def printable(text: str) -> str:
    """A peer's words as one line that may be logged or shown in a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
