"""What a person sees of a race: a table on standard error, a picture and a section for the documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.race.chart import loss_chart
from benchmarks.race.result import SEEDS, Result, System
from benchmarks.race.systems import ALONE, FARFLUNG
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 160
"""Columns of the table where it goes to a file."""


def table(result: Result) -> Table:
    """One row a system."""
    found = Table(title=f"{result.testbed} ({result.mode})")
    for name in (
        "system", "s/step", "least-most", "s of a run", "MB a step", "CPU s", "cores busy", "same losses",
        "steps to target", "s to target", "90 %",
    ):  # fmt: skip
        found.add_column(name, justify="left" if name == "system" else "right")
    for name, system in result.systems.items():
        interval = system.seconds_interval
        found.add_row(
            name,
            f"{system.seconds_per_step:.2f}",
            f"{system.spread[0]:.2f}-{system.spread[1]:.2f}",
            "-" if system.run_seconds is None else f"{system.run_seconds:.0f}",
            f"{system.bytes_on_wire / 1e6:.1f}",
            f"{system.cpu_seconds_per_step:.2f}",
            f"{system.cpu_seconds_per_step / system.seconds_per_step / result.cores:.0%}",
            "yes" if system.same_losses else "NO" if system.counted else "-",
            steps_words(system),
            "-" if system.seconds_to_target is None else f"{system.seconds_to_target:.0f}",
            "-" if interval is None else f"{interval[0]:.0f}-{interval[1]:.0f}",
        )
    return found


def steps_words(system: System) -> str:
    """Steps to the target in words: the median over seeds, or why there is none."""
    if not system.counted:
        return "not counted"
    if not system.same_losses:
        return "other losses"
    reached = [step for step in system.steps_by_seed if step is not None]
    if len(system.steps_by_seed) < SEEDS:
        return f"counted on {len(system.steps_by_seed)} of {SEEDS} seeds"
    if system.steps_to_target is None:
        return f"not reached ({len(reached)} of {len(system.steps_by_seed)} seeds)"
    return f"{system.steps_to_target:.0f} ({min(reached):.0f}-{max(reached):.0f})"


def lines(result: Result) -> Iterator[str]:
    """What the table does not say."""
    course = result.course
    yield f"model: {course.layers} layers, width {course.width}, sequence {course.sequence}, fp32"
    yield (
        f"batch {course.batch} in {course.microbatches} microbatches; each sends"
        f" {course.activation_bytes / 1e6:.2f} MB across a cut, and as much back"
    )
    yield (
        f"target {result.target_loss} nats a byte; rate {course.learning_rate:g} after {course.warmup_steps}"
        f" steps of warm-up, gradients clipped at {course.clip}"
    )
    if steps := max((one.run_steps for one in result.systems.values() if one.run_seconds), default=0):
        yield f"a run is one of {steps} steps, from the start of its processes to their end"
    bound = result.schedule_bound_seconds
    yield (
        f"naive bound {result.naive_bound_seconds:.2f} s ({result.naive_bound_resource})"
        + (f", schedule bound {bound:.2f} s" if bound else "")
        + f"; gloo's connections use {result.congestion_control}"
    )
    if result.speedup_samples_per_second is not None:
        times = result.speedup_samples_per_second
        yield f"a step, dense farflung: {times:.2f} x the fastest dense stock pipeline"
    for kind, found in result.against.items():
        for name, speedup in found.items():
            low, high = speedup.interval
            yield (
                f"to the target, {name} over {kind} ({speedup.opponent}): {speedup.times:.2f} x"
                f" ({low:.2f}-{high:.2f})"
            )
    if (winner := first_at_target(result)) is not None and not winner.startswith(FARFLUNG):
        useless = ": nothing is gained by distributing this training" if winner == ALONE else ""
        yield f"{winner} is at the target first{useless}"
    for proof in result.proofs:
        yield (
            f"whole run in the lab, {proof.system}: {proof.steps} steps in {proof.seconds:.0f} s,"
            f" first losses {'as' if proof.same_losses else 'NOT as'} counted"
        )
    devices = sorted({device for system in result.systems.values() for device in system.counted_on})
    if devices:
        yield f"steps were counted on {', '.join(devices)}, without a network"
    earlier = [
        name
        for name, system in result.systems.items()
        if system.same_losses and not system.counted_by_this_code
    ]
    if earlier:
        yield f"counted by other code, whose first losses are these: {', '.join(earlier)}"
    missing = [name for name, system in result.systems.items() if not system.counted]
    if missing:
        yield f"not counted: {', '.join(missing)} (python -m benchmarks.race.count)"
    if result.void:
        yield f"VOID: the switch was late ({result.late_p99_ms:.1f} ms) in {', '.join(result.void)}"


def first_at_target(result: Result) -> str | None:
    """The system with the least time to the target, one machine alone included."""
    seconds = {name: one.seconds_to_target for name, one in result.systems.items() if one.seconds_to_target}
    return min(seconds, key=seconds.__getitem__, default=None)


def show(result: Result) -> None:
    """Print both to standard error, where they do not mix with JSON."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH)
    console.print(table(result))
    for line in lines(result):
        console.print(line, highlight=False)


def picture(result: Result) -> Figure:
    """Draw validation loss over seconds of training."""
    curves = {name: system.validation for name, system in result.systems.items() if system.validation}
    return loss_chart(f"Validation loss over time: {result.testbed}", curves, result.target_loss)
