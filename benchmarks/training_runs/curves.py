"""Losses and metrics of a run by step, as its folder has them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farflung.client.output.history import effective_rows


@dataclass
class Curves:
    """Of one run, by steps done: training and held-out losses, metrics, and seconds of each step."""

    name: str
    losses: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)


def read(run: Path) -> Curves:
    """The curves of a run folder; of a step that was done again, the last row counts."""
    found = Curves(run.name)
    for row in effective_rows(run):
        if row.loss is not None:
            found.losses[row.step] = row.loss
        if row.seconds is not None:
            found.seconds[row.step] = row.seconds
    for entry in _entries(run / "metrics.jsonl"):
        if entry.get("metrics"):
            found.metrics[entry["step"]] = entry["metrics"]
    for entry in _entries(run / "events.jsonl"):
        if entry["event"] == "validated":
            found.held_out[entry["step"]] = entry["loss"]
    return found


def table(found: Curves, every: int) -> Iterator[str]:
    """Rows of a Markdown table: the mean training loss since the row before, and the evaluation then."""
    names = sorted({name for values in found.metrics.values() for name in values})
    yield f"| steps | training loss | held-out loss |{''.join(f' {name} |' for name in names)}"
    yield "|" + "---|" * (3 + len(names))
    before, last = 0, max(found.losses)
    for step in [*range(0, last, every), last]:
        window = [loss for at, loss in found.losses.items() if before < at <= step]
        before = step
        cells = [str(step), f"{statistics.mean(window):.3f}" if window else ""]
        cells.append(f"{found.held_out[step]:.3f}" if step in found.held_out else "")
        cells += [f"{found.metrics[step][name]:.3f}" if step in found.metrics else "" for name in names]
        yield f"| {' | '.join(cells)} |"


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        yield json.loads(line)
