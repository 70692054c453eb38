"""`ask`: read all that is asked of a run, before anything is loaded, captured or submitted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from farflung.client.options.checkpoints import checkpoint_policy
from farflung.client.options.codecs import Codecs, parse_codecs
from farflung.client.options.durations import parse_patience
from farflung.client.options.merging import require_inner_steps
from farflung.client.options.resuming import find_earlier, standing_options
from farflung.client.options.target import Target, parse_target
from farflung.client.output.sinks import LogTo, parse_log
from farflung.errors import JobError

if TYPE_CHECKING:
    from farflung.client.output.run_record import RunOptions, RunRecord, SubmittedJob
    from farflung.client.run.checkpointing import CheckpointPolicy
    from farflung.opdag.graph import Precision


@dataclass(frozen=True)
class Request:
    """What a user gave: `options` of a run, the folder for it (`out`) or of the run to `resume`.

    `token` is one for the broker, `emulated` a captured model for emulated devices. Without `wait`, workers
    that it names must have joined.
    """

    options: RunOptions
    out: Path | None = None
    resume: Path | None = None
    token: str | None = None
    wait: bool = False
    emulated: Path | None = None


@dataclass(frozen=True)
class Asked:
    """What is asked of a run: `options` are those given, and for a run to resume those that it keeps.

    `earlier` is the record of the run to resume, None for a new one; `standing` is its job, if that still
    stands at the broker.
    """

    request: Request
    options: RunOptions
    policy: CheckpointPolicy
    codecs: Codecs
    target: Target
    precision: Precision | None
    patience_seconds: int
    log: LogTo | None = None
    earlier: RunRecord | None = None
    standing: SubmittedJob | None = None


def ask(request: Request) -> Asked:
    """Read the options of a run, and the record of the run to resume if there is one.

    Raises
    ------
    FarflungError
        An option cannot be read, two contradict each other, or there is no such run to resume. Nothing was
        changed.
    """
    earlier = find_earlier(request.resume, request.out)
    has_token = request.token is not None
    options = request.options if earlier is None else request.options.over(earlier.options, has_token)
    return _read(request, options, earlier)


def ask_at_place(asked: Asked, standing: SubmittedJob | None) -> Asked:
    """The same for a run that takes its place at the job that `standing` is, if one still stands.

    Raises
    ------
    JobError
        The job was submitted with other options.
    """
    if standing is None or asked.earlier is None:
        return asked
    options = standing_options(asked.request.options, asked.earlier, standing.job)
    return _read(asked.request, options, asked.earlier, standing)


def _read(
    request: Request,
    options: RunOptions,
    earlier: RunRecord | None,
    standing: SubmittedJob | None = None,
) -> Asked:
    codecs = parse_codecs(options.codec, options.sum_codec)
    target = parse_target(options, request.token, codecs.wishes)
    require_inner_steps(options.inner_steps, target.wishes.replicas)
    return Asked(
        request,
        options,
        checkpoint_policy(options, earlier is not None, request.emulated is not None),
        codecs,
        target,
        parse_precision(options.precision),
        parse_patience(options.patience),
        None if options.log is None else parse_log(options.log),
        earlier,
        standing,
    )


def parse_precision(given: str | None) -> Precision | None:
    """Parse `--precision`; raises JobError if there is no such precision."""
    from farflung.opdag.graph import Precision

    for name in get_args(Precision):
        if given == name:
            return name
    if given is not None:
        raise JobError(f"--precision must be {' or '.join(get_args(Precision))}, found {given!r}")
    return None
