"""`farflung capture`: what a job's model looks like as an OP-DAG."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from farflung.cli.output import print_json, size
from farflung.cli.quiet import quietly


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


def capture(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="Python file with `def job() -> farflung.Job`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document.")] = False,
) -> None:
    """Capture a job's model, hold it beside eager, and say what it is made of."""
    report = _report(job)
    if as_json:
        print_json(report)
        return
    typer.echo(
        f"{report.nodes} nodes of {len(report.operators)} operators, {size(report.graph_bytes)} on the wire"
    )
    typer.echo(f"{report.parameters:,} parameters, {size(report.parameter_bytes)}")
    typer.echo(f"{report.flops / 1e6:,.1f} MFLOP forward a microbatch")
    for name, count in report.operators.items():
        typer.echo(f"{count:6d}  {name}")
    for alias, name in report.ties.items():
        typer.echo(f"tied: {alias} = {name}")
    for remark in report.remarks:
        typer.echo(f"note: {remark}")


def _report(path: Path) -> CaptureReport:
    from farflung.client.load import load_job
    from farflung.client.prepared import prepare
    from farflung.opdag.cost import flops

    job = load_job(path)
    with quietly():
        prepared = prepare(job)
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
    )
