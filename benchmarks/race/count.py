"""Count the steps that systems need to the race's target, on any device of PyTorch and without a network.

    python -m benchmarks.race.count --out FILE [--systems NAME...] [--seeds 5] [--device cuda] [--jobs 8]
    python -m benchmarks.race.count --out FILE --check 3        # compare older runs with this code
    python -m benchmarks.race.count --write-text FILE           # the built-in text, for another machine

Each run is written to FILE when it is over, and runs that are there are not repeated: a count that was
interrupted goes on where it was. What code, course, text or seed has changed is counted anew. Systems are
named as in `benchmarks/race/counting/entrant.py`; seeds are the outer loop, so a count that is cut short has
whole seeds. Exits 2 while runs are left, 1 if something cannot be counted at all.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported here and in what is started

import msgspec
import torch
from benchmarks.arguments import file_that_exists, positive, whole
from benchmarks.race.counting import store
from benchmarks.race.counting.corpus import built_in, read_text, write_text
from benchmarks.race.counting.curve import crossing
from benchmarks.race.counting.entrant import Entrant, entrant
from benchmarks.race.counting.training import OutOfTime, train
from benchmarks.race.course import COURSE, Course

from farflung.data.text import Corpus
from farflung.errors import FarflungError
from farflung.heap import keep_freed_memory
from farflung.runtime.torch_backend.modes import use_mode

SYSTEMS = (
    "dense", "four-homes=auto", "stock-int8", "stock-bf16", "eight-homes=auto", "two-sites=auto",
    "four-homes=axes10/axes100-dithered", "four-homes=adatopk:4", "four-homes=uniform:4", "good-wan=auto",
    "lan=auto", "8=stock-int8", "8=stock-bf16", "four-homes=axes30/axes100-dithered",
)  # fmt: skip
"""The systems that matter most come first."""
AGREE = 1e-4
"""Relative difference of a loss on another device or version of PyTorch."""


class Task(msgspec.Struct, frozen=True):
    """One run, as a process is given it; `until` is on the monotonic clock of this machine."""

    system: str
    seed: int
    course: Course
    device: str
    text: str
    code: str
    until: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Count what is not there yet; returns the exit code."""
    options = parsed(arguments)
    try:
        return _main(options)
    except FarflungError as error:
        print(f"count.py: {error}", file=sys.stderr)
        return 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; what is wrong with it alone ends the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="the file of counted runs")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--seeds", type=whole, default=5, help="how many, from 0 on (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=whole, default=1, help="runs at a time, each in a process (default: 1)"
    )
    parser.add_argument("--seconds", type=positive, help="stop after so long")
    parser.add_argument(
        "--steps", type=whole, help=f"of a run at most (default: {COURSE.steps}), for a trial"
    )
    parser.add_argument(
        "--text", type=file_that_exists, help="a file of --write-text (default: this Python's own text)"
    )
    parser.add_argument("--write-text", type=Path, metavar="FILE", help="write the built-in text, and end")
    parser.add_argument(
        "--check", type=whole, metavar="N", help="compare N steps of older runs with this code"
    )
    options = parser.parse_args(arguments)
    if options.write_text is None and options.out is None:
        parser.error("give --out FILE, or --write-text FILE")
    if options.check is not None and options.check > store.EARLY:
        parser.error(f"expected --check of at most {store.EARLY}, found {options.check}")
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out {options.out} is a folder")
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {options.device}: {str(error).splitlines()[0]}")
    return options


def _main(options: argparse.Namespace) -> int:
    if options.write_text is not None:
        write_text(options.write_text)
        return 0
    until = None if options.seconds is None else time.monotonic() + options.seconds
    corpus = _corpus(str(options.text or ""))
    course = msgspec.structs.replace(COURSE, steps=options.steps or COURSE.steps)
    code, lines = store.code_digest(), store.read(options.out)
    known = store.valid(lines, code)
    if options.check is not None:
        return _check(options, lines, known, code)
    systems = [entrant(name, course, corpus) for name in dict.fromkeys(options.systems)]
    tell(f"text {corpus.sha256[:12]}, {corpus.byte_count} bytes; target {course.target} nats a byte")
    tasks = [
        Task(one.name, seed, course, options.device, str(options.text or ""), code, until)
        for seed, one in _missing(systems, course, corpus.sha256, options.seeds, set(known))
    ]
    older = len([line for line in lines if isinstance(line, store.Run) and line.key not in known])
    if older:
        tell(f"{older} runs of {options.out} are of other code: they count after --check")
    tell(f"{len(known)} runs are there, {len(tasks)} are to be counted")
    done = 0
    for run in _runs(tasks, options.jobs):
        store.append(options.out, run)
        done += 1
        tell(words(run))
    left = len(tasks) - done
    if left:
        tell(f"{left} runs are left: the same command goes on with them")
    return 2 if left else 0


def words(run: store.Run) -> str:
    """One line about a run."""
    at = crossing(run.evaluations, run.course.target)
    reached = f"at the target at step {at:.1f}" if at is not None else f"not at the target ({run.end})"
    ratio = f", {run.fp32_bytes / run.payload_bytes:.1f} x fewer bytes" if run.payload_bytes else ""
    last = f"{run.evaluations[-1][1]:.3f}" if run.evaluations else "-"
    return (
        f"{run.system} seed {run.seed}: {reached}, {last} after {run.steps} steps"
        f"{ratio}, {run.seconds_per_step:.2f} s a step"
    )


def _missing(
    systems: Sequence[Entrant], course: Course, text: str, seeds: int, known: set[str]
) -> Iterator[tuple[int, Entrant]]:
    """Each run that is not there, once: two names may mean the same numbers."""
    for seed in range(seeds):
        for one in systems:
            key = one.key(course, text, seed)
            if key not in known:
                known.add(key)
                yield seed, one


def _runs(tasks: Sequence[Task], jobs: int) -> Iterator[store.Run]:
    """The runs as they end; those that had no time left or failed are missing."""
    given = [msgspec.json.encode(task) for task in tasks]
    if jobs == 1 or len(tasks) < 2:
        yield from (_decoded(run) for run in map(_run, given) if run is not None)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        for future in as_completed([pool.submit(_run, one) for one in given]):
            if (run := future.result()) is not None:
                yield _decoded(run)


def _decoded(run: bytes) -> store.Run:
    return msgspec.json.decode(run, type=store.Run)


def _run(given: bytes) -> bytes | None:
    """One run in this process, as JSON; None if its time was over, or it failed and said so."""
    task = msgspec.json.decode(given, type=Task)
    if task.until is not None and time.monotonic() > task.until:
        return None
    _prepare(task.device)
    corpus, until = _corpus(task.text), math.inf if task.until is None else task.until
    try:
        one = _entrant(task.system, task.course, task.text)
        run = train(one, task.course, corpus, task.seed, torch.device(task.device), task.code, until)
    except OutOfTime:
        return None
    except (FarflungError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0]
        tell(f"{task.system} seed {task.seed} FAILED: {type(error).__name__}: {first[:300]}")
        return None
    return msgspec.json.encode(run)


def _check(
    options: argparse.Namespace, lines: Sequence[store.Line], known: dict[str, store.Run], code: str
) -> int:
    """Train the first steps of each system's first older run again, and note where they are the same."""
    older = [line for line in lines if isinstance(line, store.Run) and line.key not in known]
    text = str(options.text or "")
    corpus, failed = _corpus(text), False
    _prepare(options.device)
    for run in older:
        course = msgspec.structs.replace(run.course, steps=min(options.check, run.steps), validate_every=0)
        if run.text != corpus.sha256:
            tell(f"{run.system} seed {run.seed}: counted on another text ({run.text[:12]})")
            failed = True
            continue
        one = _entrant(run.system, run.course, text)
        again = train(one, course, corpus, run.seed, torch.device(options.device), code)
        pairs = list(zip(again.losses, run.losses, strict=False))
        difference = max((abs(a - b) / abs(b) for a, b in pairs), default=math.inf)
        same = one.key(run.course, run.text, run.seed) == run.key and difference <= AGREE
        failed |= not same
        verdict = "the same" if same else "NOT the same"
        tell(f"{run.system} seed {run.seed}: {verdict}, first losses differ by {difference:.1e}")
        if same:
            store.append(options.out, store.Checked(run.key, code, len(pairs), difference))
    return int(failed)


@cache
def _corpus(text: str) -> Corpus:
    return read_text(Path(text)) if text else built_in()


@cache
def _entrant(system: str, course: Course, text: str) -> Entrant:
    return entrant(system, course, _corpus(text))


@cache
def _prepare(device: str) -> None:
    """Full float32 in this process. Kernels may add in any order: seeds tell more than equal bits would."""
    keep_freed_memory()
    torch.set_num_threads(1)
    use_mode(torch.device(device), deterministic=False)
    if device != "cpu":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def tell(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
