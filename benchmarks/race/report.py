"""What a person sees of a race: a table on standard error, a picture and a section for the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.race.chart import loss_chart
from benchmarks.race.result import Result
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table(result: Result) -> Table:
    """One row a system."""
    found = Table(title=f"{result.testbed} ({result.mode})")
    for name in (
        "system", "s/step", "least-most", "samples/s", "MB a step", "CPU s", "cores busy", "same losses",
        "loss", "s to target",
    ):  # fmt: skip
        found.add_column(name, justify="left" if name == "system" else "right")
    for name, system in result.systems.items():
        found.add_row(
            name,
            f"{system.seconds_per_step:.2f}",
            f"{system.spread[0]:.2f}-{system.spread[1]:.2f}",
            f"{system.samples_per_second:.2f}",
            f"{system.bytes_on_wire / 1e6:.1f}",
            f"{system.cpu_seconds_per_step:.2f}",
            f"{system.cpu_seconds_per_step / system.seconds_per_step / result.cores:.0%}",
            "yes" if system.same_losses else "NO",
            "-" if system.final_validation_loss is None else f"{system.final_validation_loss:.4f}",
            "-" if system.seconds_to_target is None else f"{system.seconds_to_target:.0f}",
        )
    return found


def lines(result: Result) -> list[str]:
    """What the table does not say."""
    course = result.course
    said = [
        f"model: {course.layers} layers, width {course.width}, sequence {course.sequence}, fp32",
        f"batch {course.batch} in {course.microbatches} microbatches; each sends"
        f" {course.activation_bytes / 1e6:.2f} MB across a cut, and as much back",
        *(
            [f"schedule bound {result.schedule_bound_seconds:.2f} s, simulated with measured rates"]
            if result.schedule_bound_seconds
            else []
        ),
        f"naive bound {result.naive_bound_seconds:.2f} s ({result.naive_bound_resource}); one process without"
        f" a network {result.one_process_seconds_per_step:.2f} s; gloo's connections use"
        f" {result.congestion_control}",
    ]
    if result.speedup_samples_per_second is not None:
        said.append(f"farflung: {result.speedup_samples_per_second:.2f} x the faster of GPipe and 1F1B")
    for name, speedup in result.speedups.items():
        ratio = result.systems[name].ratio
        beside = f", {ratio:.1f} x fewer bytes than dense" if ratio is not None and ratio > 1.05 else ""
        said.append(f"to the target loss, {name}: {speedup:.2f} x the faster of GPipe and 1F1B{beside}")
    for proof in result.proofs:
        said.append(
            f"whole run in the lab, {proof.system}: {proof.steps} steps in {proof.seconds:.0f} s, losses"
            f" {'as' if proof.same_losses else 'NOT as'} without a network"
        )
    if result.void:
        said.append(f"VOID: the switch was late ({result.late_p99_ms:.1f} ms) in {', '.join(result.void)}")
    return said


def show(result: Result) -> None:
    """Print both to standard error, where they do not mix with JSON."""
    console = Console(stderr=True)
    console.print(table(result))
    for line in lines(result):
        console.print(line, highlight=False)


def picture(result: Result) -> Figure:
    """Draw validation loss over seconds of training."""
    curves = {name: system.validation for name, system in result.systems.items() if system.validation}
    return loss_chart(f"Validation loss over time: {result.testbed}", curves, result.target_loss)
