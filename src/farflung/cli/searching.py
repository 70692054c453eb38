"""What takes long, on standard error: a moving line on a terminal, else a line for each thing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farflung.cli.plain import is_terminal


@contextmanager
def searching() -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is being done now."""
    stream = sys.stderr  # what is done meanwhile may not write to it
    if is_terminal():
        with moving_line() as tell:
            yield tell
        return
    said: list[str] = []

    def once(words: str) -> None:
        phase = words if words.startswith("what if ") else words.partition(":")[0]
        if phase not in said:
            said.append(phase)
            print(phase, file=stream, flush=True)

    yield once


@contextmanager
def moving_line() -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is being done, beside a clock; the line is gone in the end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    shown = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    # What a job file prints is for whoever reads standard output.
    with Progress(*shown, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=None)
        yield lambda words: progress.update(task, description=words)
