"""`farflung capture`: what a job's model looks like as an OP-DAG."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from farflung.cli.output import counted, print_json, size
from farflung.cli.quiet import quietly

if TYPE_CHECKING:
    from farflung.client.prepared import Prepared


class ProfileReport(msgspec.Struct, frozen=True):
    """A profile that was written: where, of which device, and what that sustains on the whole model."""

    path: str
    device: str
    kinds: int
    tflops: float


class CaptureReport(msgspec.Struct, frozen=True):
    """What was captured. `flops` is one microbatch forward, `graph_bytes` the OP-DAG on the wire."""

    nodes: int
    operators: dict[str, int]
    parameters: int
    parameter_bytes: int
    flops: int
    graph_bytes: int
    ties: dict[str, str]
    remarks: list[str]
    profile: ProfileReport | None = None


def capture(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Python file with `def job() -> farflung.Job`.")],
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Time each kind of operator on this device, for `plan --profile`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Capture a job's model, hold it beside eager, and say what it is made of."""
    report = _report(job, profile)
    if as_json:
        print_json(report)
        return
    typer.echo(
        f"{counted(report.nodes, 'node')} of {counted(len(report.operators), 'operator')},"
        f" {size(report.graph_bytes)} on the wire"
    )
    typer.echo(f"{report.parameters:,} parameters, {size(report.parameter_bytes)}")
    typer.echo(f"{report.flops / 1e6:,.1f} MFLOP forward a microbatch")
    for name, count in report.operators.items():
        typer.echo(f"{count:6d}  {name}")
    for alias, name in report.ties.items():
        typer.echo(f"tied: {alias} = {name}")
    for remark in report.remarks:
        typer.echo(f"note: {remark}")
    if (made := report.profile) is not None:
        typer.echo(
            f"{made.device}: {made.tflops:.3g} TFLOP/s over {made.kinds} kinds of operators, in {made.path}"
        )


def _profile(prepared: Prepared, path: Path) -> ProfileReport:
    from farflung.client.check import first_microbatch
    from farflung.runtime.torch_backend.profile import profile_graph
    from farflung.workload import workload_of
    from farflung.workload.profile import sustained_tflops, write_profile

    job, graph = prepared.job, prepared.graph
    made = profile_graph(graph, prepared.state, first_microbatch(job))
    write_profile(path, made)
    workload = workload_of(graph, job.microbatches, job.microbatch_size)
    return ProfileReport(str(path), made.device, len(made.times), sustained_tflops(workload, graph, made))


def _report(path: Path, profile: Path | None) -> CaptureReport:
    from farflung.client.load import load_job
    from farflung.client.prepared import prepare
    from farflung.opdag.cost import flops

    job = load_job(path)
    with quietly():
        prepared = prepare(job)
        profiled = _profile(prepared, profile) if profile else None
    graph = prepared.graph
    parameters = [prepared.state[entry.name] for entry in graph.inputs_of("parameter")]
    return CaptureReport(
        nodes=len(graph.nodes),
        operators=dict(Counter(node.op for node in graph.nodes).most_common()),
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        flops=sum(flops(node, graph.values, job.microbatch_size) for node in graph.nodes),
        graph_bytes=len(prepared.program),
        ties=dict(graph.ties),
        remarks=list(prepared.remarks),
        profile=profiled,
    )
