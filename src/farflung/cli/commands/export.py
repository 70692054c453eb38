"""`farflung export`: write the weights of a run as a plain state dict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.text import count_of, format_bytes


def export(
    run: Annotated[
        str, typer.Argument(metavar="DIR", help="A run folder, or the folder or URL of a run's checkpoints.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ends in .safetensors or .pt. [default: DIR-STEP.safetensors, in this folder]",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Take the checkpoint of step N. [default: the newest]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the newest weights of a run as a state dict for PyTorch, from its end or from a checkpoint."""
    from farflung.runtime.frameworks import require_installed

    require_installed("torch", "weights are read and written by it")
    from farflung.client.output.export import export_weights

    exported = export_weights(run, out, step)
    if as_json:
        print_json(exported)
        return
    for line in exported.skipped:
        note(f"warning: skipped: {line}")
    size = f"{count_of(exported.tensors, 'tensor')}, {format_bytes(exported.bytes)}"
    of = "" if exported.step is None else f", the weights of step {exported.step}"
    print_text(f"{exported.file}: {size}{of}, from {exported.source}")
