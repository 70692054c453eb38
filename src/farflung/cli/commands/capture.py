"""`farflung capture`: show a job's model as an OP-DAG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.options.job import JobArgument, PrecisionOption, read_job
from farflung.cli.process.interrupts import suppress_torch_output
from farflung.cli.render.output import JsonOption, note, print_json
from farflung.cli.render.progress import searching
from farflung.client.options.asked import parse_precision
from farflung.errors import CaptureError
from farflung.text import count_of, format_bytes, format_flops

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.capture.report import CaptureReport, ProfileReport
    from farflung.opdag.capture import Capture, Verdict


def capture(
    job: JobArgument,
    report: Annotated[
        bool,
        typer.Option("--report", help="Also show the verdict of each check, and where the model can be cut."),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the bytes that cross a cut, over the model's depth."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Time each operator on this device and save it, for `plan --profile`."
        ),
    ] = None,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Capture a job's model, compare it with eager, and show its operators."""
    if picture is not None:
        from farflung.pictures.figure import check_picture

        check_picture(picture)
    declared = read_job(job, precision=parse_precision(precision))
    # These import torch, whose presence `read_job` has checked.
    from farflung.client.capture.check import capture_job
    from farflung.client.capture.report import report_of

    try:
        with searching() as tell, suppress_torch_output():
            captured = capture_job(declared, tell)
            profiled = _profile(declared, captured, profile) if profile else None
            made = report_of(declared, captured, report, profiled)
    except CaptureError as error:
        if report:
            _tell_refusal(error, as_json)
        raise
    if picture is not None:
        _draw(picture, declared, captured)
    if as_json:
        print_json(made)
        return
    for line in (*_facts(made), *_details(declared, captured, made)):
        typer.echo(line)


def _facts(made: CaptureReport) -> Iterator[str]:
    yield (
        f"{count_of(made.nodes, 'node')} of {count_of(len(made.operators), 'operator')},"
        f" {format_bytes(made.graph_bytes)} on the wire"
    )
    yield f"{made.parameters:,} parameters, {format_bytes(made.parameter_bytes)}"
    yield f"{format_flops(made.flops)} forward a microbatch"
    for name, count in made.operators.items():
        yield f"{count:6d}  {name}"
    for alias, name in made.ties.items():
        yield f"tied: {alias} = {name}"
    for remark in made.remarks if made.verdicts is None else ():
        yield f"note: {remark}"
    if (profile := made.profile) is not None:
        yield (
            f"{profile.device}: {profile.tflops:.3g} TFLOP/s over {profile.kinds} kinds of operators, in"
            f" {profile.path}"
        )


def _details(declared: Job, captured: Capture, made: CaptureReport) -> Iterator[str]:
    """The additional lines of a full report."""
    if made.verdicts is None or made.cuts is None:
        return
    from farflung.cli.render.forecast import sparkline
    from farflung.workload import workload_of

    yield (
        f"trained in {made.precision}: {format_bytes(made.training_bytes)} with gradients and AdamW,"
        f" {format_bytes(made.activation_bytes)} stored for a microbatch"
    )
    yield ""
    yield from _verdict_lines(made.verdicts)
    yield ""
    workload = workload_of(captured.graph, declared.microbatches, declared.microbatch_size)
    crossing, legal = workload.crossing_forward.tolist(), workload.legal.tolist()
    least = min((cut.forward_bytes for cut in made.cuts), default=0)
    most = max((cut.forward_bytes for cut in made.cuts), default=0)
    crossing_bytes = f"{format_bytes(least)} to {format_bytes(most)} of a microbatch"
    yield f"{count_of(len(made.cuts), 'place')} to cut; {crossing_bytes} cross:"
    yield f"  {sparkline(crossing, legal)}"
    for division in made.divisions or ():
        places = [_place(captured, at) for at in division.positions]
        crossing_bytes = format_bytes(division.forward_bytes)
        yield f"in {division.segments} parts {crossing_bytes} cross, cut in {', '.join(places)}"


def _place(captured: Capture, position: int) -> str:
    """The module that a cut is in; for code of the model itself, the module before it."""
    nodes = captured.graph.nodes
    if module := captured.origins[nodes[position].number].module:
        return module
    before = (captured.origins[node.number].module for node in reversed(nodes[:position]))
    behind = next((module for module in before if module), "")
    return f"the model's own forward behind {behind}" if behind else "the model's own forward"


def _verdict_lines(verdicts: list[Verdict]) -> Iterator[str]:
    from farflung.cli.render.tables import wrapped
    from farflung.opdag.capture import LINTS

    for verdict in verdicts:
        words = verdict.words or LINTS[verdict.lint]
        first, *others = wrapped(verdict.outcome, f"{verdict.lint}: {words}")
        yield first
        yield from others


def _tell_refusal(error: CaptureError, as_json: bool) -> None:
    """Print the lint that refused the model, and its rule; `main` prints the error itself."""
    from farflung.client.capture.report import Refusal
    from farflung.opdag.capture import LINTS, Verdict

    if as_json:
        print_json(Refusal(str(error), [Verdict(error.lint, "refused", str(error))]))
        note(f"error: {error}")
        raise typer.Exit(error.exit_code)
    rule = f"the rule is: {LINTS[error.lint]}"
    for line in _verdict_lines([Verdict(error.lint, "refused", rule)]):
        typer.echo(line)


def _draw(path: Path, declared: Job, captured: Capture) -> None:
    from farflung.client.capture.report import divisions_of
    from farflung.pictures.depth import Depth, draw_depth
    from farflung.pictures.figure import write_picture
    from farflung.workload import workload_of

    workload = workload_of(captured.graph, declared.microbatches, declared.microbatch_size)
    parts = [captured.origins[node.number].module for node in captured.graph.nodes]
    divisions = divisions_of(captured, workload)
    cuts = next((d.positions for d in reversed(divisions) if d.segments <= 4), [])
    depth = Depth(workload.crossing_forward.tolist(), workload.legal.tolist(), parts, cuts)
    write_picture(draw_depth(declared.name or "job", depth), path)
    note(f"the picture is in {path}")


def _profile(declared: Job, captured: Capture, path: Path) -> ProfileReport:
    from farflung.client.capture.check import first_microbatch
    from farflung.client.capture.quantizing import quantized_matrices
    from farflung.client.capture.report import ProfileReport
    from farflung.errors import ProfileError
    from farflung.heap import keep_freed_memory
    from farflung.runtime.parity.steps import named_state
    from farflung.runtime.torch_backend.profiling.profile import profile_graph, this_device
    from farflung.workload import workload_of
    from farflung.workload.profile import sustained_tflops, write_profile
    from farflung.workload.profile_store import cache_folder, recall, remember

    if not declared.has_values:
        raise ProfileError("the model is on the meta device and has no values: nothing can be timed")
    keep_freed_memory()  # as workers do
    graph, device, folder = captured.graph, this_device(), cache_folder()
    state = named_state(declared.model, graph) | quantized_matrices(declared.model, captured.quantization)
    made = profile_graph(
        graph,
        declared.microbatch_size,
        state,
        first_microbatch(declared),
        declared.optimizer,
        recall(device, folder),
    )
    remember(device, made, folder)
    write_profile(path, made)
    workload = workload_of(graph, declared.microbatches, declared.microbatch_size)
    return ProfileReport(str(path), made.device, len(made.times), sustained_tflops(workload, graph, made))
