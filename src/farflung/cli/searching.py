"""What a long search is doing, on standard error: a moving line on a terminal, else a line for each thing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farflung.cli.plain import is_terminal


@contextmanager
def searching() -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is being done now."""
    stream = sys.stderr  # what is done meanwhile may not write to it
    if not is_terminal():
        said: list[str] = []

        def once(words: str) -> None:
            phase = words if words.startswith("what if ") else words.partition(":")[0]
            if phase not in said:
                said.append(phase)
                print(phase, file=stream, flush=True)

        yield once
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=stream, highlight=False)
    shown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda words: progress.update(task, description=words)
