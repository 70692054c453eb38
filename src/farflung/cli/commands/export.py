"""`farflung export`: write the weights of a run as a plain state dict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.render.output import JsonOption, note, print_json, print_text
from farflung.errors import CheckpointError
from farflung.text import count_of, format_bytes

if TYPE_CHECKING:
    from farflung.client.capture.prepared import Prepared


def export(
    run: Annotated[
        str, typer.Argument(metavar="DIR", help="A run folder, or the folder or URL of a run's checkpoints.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ends in .safetensors or .pt; for an adapter, a folder. [default: DIR-STEP.safetensors or"
            " DIR-STEP-adapter, in this folder]",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Take the checkpoint of step N. [default: the newest]"),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Write the frozen weights, too; this runs the run's job file, which has them."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the newest weights of a run, from its end or a checkpoint, as a state dict or an adapter.

    A run that trains a PEFT adapter exports that as a folder for PeftModel.from_pretrained.
    """
    from farflung.runtime.frameworks import require_installed

    require_installed("torch", "weights are read and written by it")
    from farflung.client.output.export import export_weights

    exported = export_weights(run, out, step, _job_of(run) if whole else None)
    if as_json:
        print_json(exported)
        return
    for line in exported.skipped:
        note(f"warning: skipped: {line}")
    size = f"{count_of(exported.tensors, 'tensor')}, {format_bytes(exported.bytes)}"
    of = "" if exported.step is None else f", the weights of step {exported.step}"
    print_text(f"{exported.file}: {size}{of}, from {exported.source}")


def _job_of(run: str) -> Prepared:
    """The job of a run, captured again from the file that `run.json` names."""
    from farflung.client.api.load import load_job
    from farflung.client.capture.prepared import prepare
    from farflung.client.output.run_record import read_record

    if "://" in run:
        raise CheckpointError("--whole needs the job file, which a run folder names: give that, not a URL")
    record = read_record(Path(run))
    return prepare(load_job(record.job, text=record.options.text))
