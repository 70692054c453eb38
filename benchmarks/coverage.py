"""Which architectures of timm and transformers hold: captured, cut in four, and equal to eager in a step.

The list comes from the libraries' own registries (`benchmarks/coverage_cases`), with small random models.
Each case runs in a process of its own with limits of time and memory. A case has one of these outcomes:

* holds: `farflung check` calls the model cut into four segments ok;
* refused: capture, or the cut, refuses it with a reason;
* differs: the cut model computes something else than eager;
* over: it takes more time or memory than its limits;
* not built: the library makes no such model within 60 seconds by the stated rule, or it does not run.

Results are kept in a file, one JSON object a line; a case that stands there is not run again. Seconds
are of processor time, so that a busy machine changes no outcome.

    python -m benchmarks.coverage [--results FILE] [--only PART ...] [--sample N --seed S]
    python -m benchmarks.coverage [--results FILE] --page docs/reference/coverage.md
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from benchmarks.arguments import file_that_exists, whole
from benchmarks.coverage_cases import timm_models, transformers_models
from benchmarks.coverage_cases.case import SAMPLES, Case, Items, Subject, Unbuildable
from benchmarks.coverage_page import page_of

from farflung.client.api.job import Job
from farflung.client.capture.check import check_job
from farflung.errors import CaptureError, FarflungError
from farflung.files import write_atomically
from farflung.runtime.optimizers.declared import SGD
from farflung.text import first_line

RESULTS = Path(__file__).parent / "coverage_cases" / "results.jsonl"
SEGMENTS = 4
STEPS = 1
MICROBATCHES = 2
BUILD_SECONDS = 60
MOST_SECONDS = 240
"""Seconds of processor time, so that a busy machine changes no outcome."""
STUCK_SECONDS = 3600
_NO_MEMORY = "can't allocate memory"  # what torch says at the limit; capture passes it on
MOST_BYTES = 12 << 30


@dataclass(frozen=True)
class Result:
    """One case's outcome; `made` says which model was tried, `lint` which lint refused it."""

    key: str
    family: str
    outcome: str
    reason: str = ""
    lint: str = ""
    made: str = ""
    seconds: float = 0.0
    loss_difference: float | None = None
    gradient_difference: float | None = None


def all_cases() -> list[Case]:
    """Every case of both libraries."""
    return [*timm_models.cases(), *transformers_models.cases()]


class _Slow(Exception):
    """The build takes too long."""


def run_here(case: Case) -> Result:
    """Build, capture, cut and compare one case in this process."""
    made = timm_models if case.library == "timm" else transformers_models
    result = Result(case.key, case.family, "not built")

    def give_up(*_: object) -> None:
        raise _Slow

    signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, BUILD_SECONDS)
    try:
        subject = made.subject(case)
    except _Slow:
        return replace(result, reason=f"not built within {BUILD_SECONDS} seconds")
    except Unbuildable as error:
        return replace(result, reason=_short(error))
    except MemoryError:
        return replace(result, reason="not built within the memory limit")
    except Exception as error:
        return replace(result, reason=f"{type(error).__name__}: {_short(error)}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return checked(subject, replace(result, made=subject.made))


def checked(subject: Subject, result: Result) -> Result:
    """The verdict of `check` on a model."""
    batch = MICROBATCHES * SAMPLES
    try:
        job = Job(
            model=subject.model,
            data=Items(subject.batch(STEPS * batch)),
            loss=subject.loss,
            optimizer=SGD(lr=1e-2),
            batch=batch,
            microbatches=MICROBATCHES,
            steps=STEPS,
        )
        report = check_job(job, SEGMENTS, STEPS)
    except FarflungError as error:
        if _NO_MEMORY in str(error):
            return replace(result, outcome="over", reason=f"more than {MOST_BYTES >> 30} GiB")
        lint = error.lint if isinstance(error, CaptureError) else type(error).__name__
        return replace(result, outcome="refused", reason=_short(error), lint=str(lint))
    except MemoryError:
        return replace(result, outcome="over", reason=f"more than {MOST_BYTES >> 30} GiB")
    except Exception as error:
        if _NO_MEMORY in str(error):
            return replace(result, outcome="over", reason=f"more than {MOST_BYTES >> 30} GiB")
        return replace(
            result, outcome="refused", reason=f"{type(error).__name__}: {_short(error)}", lint="crash"
        )
    return replace(
        result,
        outcome="holds" if report.ok else "differs",
        reason=""
        if report.ok
        else f"loss by {report.loss_difference:.0e}, gradient of {report.worst_gradient} by"
        f" {report.worst_gradient_difference:.0e}",
        loss_difference=report.loss_difference,
        gradient_difference=report.worst_gradient_difference,
    )


def _short(error: BaseException) -> str:
    return first_line(error)[:400]


def _child(case: Case, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    warnings.simplefilter("ignore")
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        answer.send(run_here(case))


def run_apart(case: Case) -> Result:
    """Run a case in a process of its own, forked after the libraries were imported."""
    mine, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(case, theirs))
    before = _used()
    process.start()
    theirs.close()
    result = Result(case.key, case.family, "over", f"more than {STUCK_SECONDS} seconds")
    if mine.poll(STUCK_SECONDS):
        try:
            result = mine.recv()
        except EOFError:
            process.join()
            slow = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
            why = (
                f"more than {MOST_SECONDS} seconds" if slow else f"the process ended with {process.exitcode}"
            )
            result = replace(result, reason=why)
    process.kill()
    process.join()
    return replace(result, seconds=round(_used() - before, 1))


def _used() -> float:
    """Processor seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def chosen(cases: Sequence[Case], only: Sequence[str], sample: int | None, seed: int) -> list[Case]:
    """The cases whose key contains one of `only`; of these a sample."""
    found = [case for case in cases if not only or any(part in case.key for part in only)]
    if sample is not None and sample < len(found):
        found = random.Random(seed).sample(found, sample)
    return found


def read(path: Path) -> dict[str, Result]:
    """The newest result of each case in a file."""
    if not path.exists():
        return {}
    rows = [Result(**json.loads(line)) for line in path.read_text().splitlines() if line]
    return {row.key: row for row in rows}


def run(cases: Iterable[Case], path: Path) -> None:
    """Run cases, each result appended to the file as it is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases:
        result = run_apart(case)
        with path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(
            f"{result.outcome:9} {result.seconds:6.1f} s  {case.key}  {result.reason[:200]}", file=sys.stderr
        )


def _import_all() -> None:
    """Import in the parent what each child needs."""
    timm_models.library()  # first: transformers imports torchvision
    import torch._dynamo
    import torch._export
    import torch._functorch.aot_autograd
    import transformers.modeling_utils
    import transformers.models.auto.modeling_auto

    assert torch._dynamo and torch._export and torch._functorch and transformers
    x = torch.randn(2, 3)
    job_like = torch.nn.Linear(3, 3)
    torch.export.export(job_like, (x,), strict=False).run_decompositions({})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--only", nargs="+", default=[], help="run cases whose key contains one of these texts"
    )
    parser.add_argument("--sample", type=whole, help="run that many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--again",
        nargs="*",
        metavar="OUTCOME",
        help="run those with such a result again; all if none is named",
    )
    parser.add_argument("--json", action="store_true", help="print all results and the counts")
    parser.add_argument("--page", type=file_that_exists, help="fill in this page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _import_all()
    cases = all_cases()
    before = read(options.results)
    wanted = chosen(cases, options.only, options.sample, options.seed)
    if options.again is None:
        wanted = [case for case in wanted if case.key not in before]
    elif options.again:
        wanted = [c for c in wanted if c.key not in before or before[c.key].outcome in options.again]
    if not options.page:
        random.Random(options.seed).shuffle(wanted)  # so that an interrupted run is a fair sample
        run(wanted, options.results)
    results = [row for row in read(options.results).values() if row.key in {case.key for case in cases}]
    if options.json:
        counts = Counter((row.key.split("/")[0], row.outcome) for row in results)
        shown = [
            {"library": library, "outcome": outcome, "count": n} for (library, outcome), n in counts.items()
        ]
        print(json.dumps({"counts": shown, "results": [asdict(row) for row in results]}, indent=1))
    if options.page:
        versions = {name: version(name) for name in ("torch", "timm", "transformers")}
        rows = [asdict(row) for row in results]
        text = page_of(options.page.read_text(), rows, len(cases), versions)
        write_atomically(options.page, text.encode())


if __name__ == "__main__":
    main()
