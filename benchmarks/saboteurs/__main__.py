"""Train jobs with one saboteur among six workers, and count how they end.

    python -m benchmarks.saboteurs [--jobs 200] [--kinds KIND,...] [--steps 8] [--drawn 0] [--verify 0.1]
        [--share 0.5] [--drawn-steps 60] [--rows FILE] [--folder FOLDER] [--json]

A broker and six workers as processes of this machine, over TLS on the loopback, with default settings and a
lease of 10 s. Each job trains a small model on three of them; the others may check it. One of the six is a
saboteur: a worker of which parts are exchanged (`saboteur.py`). Its name gives it the first, the middle or
the last part of the model, or makes it the first to check others. It cheats from a step on that differs from
job to job; `kinds.py` says how. After a job an operator allows all suspected workers again, so that one fleet
serves the jobs of one place.

* `--jobs` of the kinds in turn with `Job(verify=1)`. Each must end done with right weights, or failed with
  the saboteur named. Right are those that have each bit of an undisturbed run's, with its losses.
* `--drawn` jobs at `--verify`, with a saboteur that skips its updates in a `--share` of its intervals, drawn
  by itself. How many are caught is held against 1 - (1 - p q)^n.

With `--rows FILE` each job is kept as it ends, and none that is there is run again: what was interrupted goes
on. Exits 1 if a job at verify=1 ended as it must not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.arguments import file_to_write, folder_path, one_of, positive, several, whole
from benchmarks.saboteurs.campaign import cases, drawn_cases, run
from benchmarks.saboteurs.figures import Kept, Row, Summary, line, summary
from benchmarks.saboteurs.kinds import CHEATS, KINDS


class Document(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    summary: Summary
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and print what came of them; how far it is goes to standard error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=count, default=200, help="at verify=1: %(default)s")
    parser.add_argument("--kinds", type=several(one_of(KINDS)), help="these, with commas between")
    parser.add_argument("--steps", type=whole, default=8, help="of a job: %(default)s")
    parser.add_argument("--drawn", type=count, default=0, help="jobs at --verify: %(default)s")
    parser.add_argument("--verify", type=share, default=0.1, help="of those: %(default)g")
    parser.add_argument("--share", type=share, default=0.5, help="of intervals cheated: %(default)g")
    parser.add_argument("--drawn-steps", type=whole, default=60, help="of those jobs: %(default)s")
    parser.add_argument("--rows", type=file_to_write, metavar="FILE", help="keep each job there")
    parser.add_argument("--folder", type=folder_path, help="keep logs and run folders here")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    kinds = given.kinds.split(",") if given.kinds else CHEATS
    logging.getLogger("farflung").setLevel(logging.CRITICAL)  # what runs say is in their folders
    wanted = cases(given.jobs, kinds, given.steps)
    wanted += drawn_cases(given.drawn, given.verify, given.share, given.drawn_steps)
    with tempfile.TemporaryDirectory(prefix="farflung-saboteurs-") as temporary:
        rows = []
        for row in run(wanted, Kept(given.rows), (given.folder or Path(temporary)).absolute()):
            rows.append(row)
            print(f"{progress(len(rows), len(wanted))}  {line(row)}", file=sys.stderr, flush=True)
    document = Document(summary(rows), rows)
    text = msgspec.json.encode(document if given.json else document.summary)
    print((text if given.json else msgspec.json.format(text)).decode())
    return 0 if document.summary.ok else 1


def progress(done: int, asked: int) -> str:
    """How far it is."""
    cells = round(20 * done / max(asked, 1))
    return f"[{'#' * cells:.<20}] {done}/{asked}"


def count(text: str) -> int:
    """A whole number; 0 is none."""
    return 0 if text == "0" else whole(text)


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    if (found := positive(text)) > 1:
        raise argparse.ArgumentTypeError(f"expected a number of at most 1, found {text[:40]!r}")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
