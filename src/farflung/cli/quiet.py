"""Keeps what torch prints about a failed capture off the terminal; our error says it in one line."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from farflung.cli.interrupts import remembering_interrupts
from farflung.errors import CaptureError


@contextmanager
def quietly() -> Iterator[None]:
    """Hold back standard error and logging in this block; dropped after a `CaptureError`, else written."""
    stream, held = sys.stderr, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(held), remembering_interrupts():
            yield
    except CaptureError:
        held = io.StringIO()
        raise
    finally:
        logging.disable(logging.NOTSET)
        stream.write(held.getvalue())
