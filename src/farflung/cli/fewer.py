"""What to ask for where a model cannot be cut for as many workers as were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farflung.errors import PlanError, TooFewCuts


@contextmanager
def fewer(option: str) -> Iterator[None]:
    """Say how many workers there can be at most, by the option that asked for too many."""
    try:
        yield
    except TooFewCuts as error:
        cure = f"name at most {error.most} with --on" if option == "--on" else f"use {option} {error.most}"
        raise PlanError(f"{error.found}: {cure}") from None
