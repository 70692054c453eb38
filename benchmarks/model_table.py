"""Capture and cut every model of the zoo and compare it with eager, for docs/reference/models.md or `--json`.

What says "as published" is captured at that size without weights; gradients are compared at the size of the
tests, on every backend that this environment has.

    make models
    python -m benchmarks.model_table [--models NAME ...] [--json | --page docs/reference/models.md]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiling is most of the time

import torch
from benchmarks.arguments import file_that_exists, one_of
from benchmarks.model_backends import SEGMENTS, Difference, available
from benchmarks.model_page import filled, notes, table
from benchmarks.zoo import CASES, MODELS, Case, case
from benchmarks.zoo.parity import Subject, subject_of
from benchmarks.zoo.side_by_side import workers

from farflung.errors import GraphError
from farflung.files import write_atomically
from farflung.opdag import wire
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner import plan_graph

STEPS = 3
SAMPLES = 8
"""A microbatch: BatchNorm over few numbers multiplies rounding errors, so that nobody's gradients agree."""


@dataclass(frozen=True)
class Row:
    """One model.

    `size` says which size nodes, bytes and cuts are of. `cut_bytes` cross between four segments for each
    sample, values and gradients. `differences` are the worst relative ones of any gradient in three steps of
    three microbatches, by backend; None where the backend refuses the model, for the reason in `refusals`.
    """

    model: str
    size: str
    nodes: int
    ops: int
    parameters: int
    ir_bytes: int
    compressed_bytes: int
    cut_bytes: int
    tolerance: float
    differences: dict[str, float | None]
    refusals: dict[str, str]
    notes: str


def rows(cases: Sequence[Case], backends: dict[str, Difference]) -> Iterator[Row]:
    """One row a model, as they are made."""
    for entry in cases:
        subject = subject_of(entry, STEPS, SAMPLES)
        size, graph = ("as tested", subject.graph) if entry.real is None else published(entry)
        written = wire.dump(graph)
        differences, refusals = compared(subject, backends)
        yield Row(
            model=entry.name,
            size=size,
            nodes=len(graph.nodes),
            ops=len({node.op for node in graph.nodes}),
            parameters=sum(graph.values[given.value].numel(1) for given in graph.inputs_of("parameter")),
            ir_bytes=len(written),
            compressed_bytes=len(zlib.compress(written)),
            cut_bytes=plan_graph(graph, 2 * SEGMENTS, 1, workers(SEGMENTS)).cut_bytes,
            tolerance=entry.tolerance,
            differences=differences,
            refusals=refusals,
            notes=entry.notes,
        )


def published(entry: Case) -> tuple[str, Graph]:
    """The graph at the size that people train, from a module without weights."""
    assert entry.real is not None
    with torch.device("meta"):
        module = entry.real.build()
    return entry.real.precise, capture(module, entry.real.batch(2, 0), entry.loss).graph


def compared(
    subject: Subject, backends: dict[str, Difference]
) -> tuple[dict[str, float | None], dict[str, str]]:
    """The worst gradient difference on each backend, or its reason to refuse the model."""
    differences: dict[str, float | None] = {}
    refusals: dict[str, str] = {}
    for name, difference in backends.items():
        try:
            differences[name] = difference(subject, STEPS)
        except GraphError as error:
            differences[name], refusals[name] = None, str(error)
    return differences, refusals


def write(page: Path, made: Sequence[Row]) -> None:
    """Fill in the page's tables."""
    tables = {
        "models": [row for row in made if row.model in {entry.name for entry in MODELS}],
        "structures": [row for row in made if row.model in {entry.name for entry in CASES}],
    }
    parts = {name: table(entries) for name, entries in tables.items()}
    parts["notes"] = "\n".join(line for row in made for line in notes(row))
    write_atomically(page, filled(page.read_text(), parts).encode())


NAMES = [entry.name for entry in (*MODELS, *CASES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", type=one_of(NAMES), default=NAMES)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", type=file_that_exists, help="fill in this page's tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made: list[Row] = []
    for row in rows([case(name) for name in options.models], available()):
        print(f"{row.model}: {row.nodes} nodes, {row.ir_bytes} bytes, {row.differences}", file=sys.stderr)
        made.append(row)
    if options.json:
        print(json.dumps([asdict(row) for row in made], indent=1))
    if options.page:
        write(options.page, made)


if __name__ == "__main__":
    main()
