"""What others wrote, made fit for logs and terminals."""

from __future__ import annotations

from farflung.protocol.fields import TEXT_LENGTH


def one_line(text: str) -> str:
    """`text` without line breaks and control characters, short enough for a message."""
    return "".join(mark if mark.isprintable() else " " for mark in text)[:TEXT_LENGTH]
