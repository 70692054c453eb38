"""What a training run prints before it begins, when you stop it and when it is over; and its exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from farflung.cli.render.output import note, print_error, print_json, print_text
from farflung.client.api.execution import resume_note
from farflung.errors import JobError
from farflung.text import count_of, format_seconds, raised

if TYPE_CHECKING:
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.records import Summary
    from farflung.client.output.run_folder import RunFolder

FAILED, INTERRUPTED = 1, 130
COMPRESSED = 1.05
"""Compression ratios below this are those of links without codecs."""
LEAST_SHARE = 0.01
"""What took less of a run's time has no place of its own in one line."""
SHORTEST_SECONDS = 0.0005
"""An account of a run's time is in milliseconds."""


def report_run(
    summary: Summary, prepared: Prepared, run: RunFolder, as_json: bool, resume_command: str
) -> None:
    """Print the outcome of a run; raises typer.Exit if it was not completed.

    If it left a checkpoint, `resume_command` goes on from there.

    Raises
    ------
    JobError
        The run is done, but the job's `sample` failed.
    """
    is_done, has_checkpoint = summary.state == "done", summary.checkpoint_step is not None
    resume = resume_command if has_checkpoint and not is_done else None
    spent = _account(run)
    if as_json:
        error = {} if is_done else {"error": summary.reason}
        print_json({**error, **_fields(summary), "account": spent, "resume": resume})
    if not is_done:
        if summary.weights_step is not None and str(run.path) not in summary.reason:
            where = run.model_path if prepared.adapter is None else run.adapter_path
            note(f"the weights of step {summary.weights_step} are in {where}")
        if resume is not None:
            note(resume_note(resume))
        if summary.state == "cancelled":  # the user asked for it, so it is not an error
            who, colon, why = summary.reason.partition(": ")  # such as an operator's reason
            note(f"{who} after {count_of(summary.steps, 'step')}{colon}{why}")
            raise typer.Exit(INTERRUPTED)
        print_error(summary.reason, as_json=False)
        raise typer.Exit(FAILED)
    files = "metrics, plan, events and summary"
    if not summary.emulated:
        result = "weights" if prepared.adapter is None else "adapter"
        files = f"metrics, plan, events, summary and {result}"
    if summary.reason:
        note(f"{summary.reason} (step {summary.steps} of {prepared.job.steps})")
    note(f"done: {count_of(summary.steps, 'step')}; {files} are in {run.path}")
    note(f"to look at it: farflung report {shlex.quote(str(run.path))}")
    if (best := summary.best) is not None and best.step == summary.weights_step:
        note(f"its weights are those of step {best.step}, with the best {best.metric}: {best.value:.6g}")
    if spent:
        note(account_words(spent))
    if summary.step_seconds is not None and summary.predicted_step_seconds is not None:
        how = "the median" if prepared.job.sync is None else "the mean, merges included"
        took = f"a step took {format_seconds(summary.step_seconds)} ({how})"
        predicted = format_seconds(summary.predicted_step_seconds)
        note(took if summary.prediction_is_brief else f"{took}; predicted: {predicted}")
    if summary.ratio is not None and summary.ratio > COMPRESSED:
        least = min(summary.links, key=lambda link: link.ratio or 0.0)
        note(
            f"links carried {summary.ratio:.1f} times fewer bytes than in fp32, frames included; the least on"
            f" {least.source} -> {least.target}: {least.ratio or 0.0:.1f} times"
        )
    if has_checkpoint and not summary.reason:
        note(f"to train on: {resume_command} --steps {2 * summary.steps}")
    if not summary.emulated:
        _print_sample(prepared, run, as_json)


def account_words(spent: dict[str, float]) -> str:
    """What the time of a run was spent on, in one line; shares below one in a hundred are one sum."""
    whole = sum(spent.values())
    shares = sorted(spent.items(), key=lambda share: -share[1])
    named = [(label, seconds) for label, seconds in shares if seconds >= LEAST_SHARE * whole]
    other = sum(seconds for _, seconds in shares[len(named) :])
    if other >= SHORTEST_SECONDS:
        named.append(("other", other))
    words = [f"{format_seconds(seconds)} {label}" for label, seconds in named]
    return f"of {format_seconds(whole)}: {', '.join(words)}"


def _account(run: RunFolder) -> dict[str, float]:
    """Seconds that the run spent, by what they went to; empty if its files do not say."""
    from farflung.pages.report.account import account
    from farflung.pages.report.recorded import read_run

    try:
        return {share.label: round(share.seconds, 3) for share in account(read_run(run.path))}
    except JobError:  # such as a disk that is gone: the run is over all the same
        return {}


def _fields(summary: Summary) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(summary)


def _print_sample(prepared: Prepared, run: RunFolder, as_json: bool) -> None:
    """Print the job's sample from the trained model, with its weights read back from the file."""
    from farflung.client.output.result import load_result, result_in

    job = prepared.job
    if job.sample is None or as_json:
        return
    note("sampling: Job(sample=) runs on this machine, with the weights of the run")
    if (found := result_in(run)) is None:
        raise JobError(f"the run left no weights in {run.path}")
    load_result(found, job.model)
    job.model.eval()
    try:
        text = job.sample(job.model)
    except Exception as error:
        raise JobError(raised("the run is done, but Job(sample=)", error)) from error
    print_text(str(text))
