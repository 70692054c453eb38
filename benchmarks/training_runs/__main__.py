"""Baselines of the training examples, and what came out of a run of one.

python -m benchmarks.training_runs baselines pairs
python -m benchmarks.training_runs compare examples/gpt2.py runs/gpt2 --steps 5
python -m benchmarks.training_runs table runs/gpt2 --every 20
python -m benchmarks.training_runs picture docs/pictures/training-runs.svg runs/sentence_pairs runs/gpt2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.arguments import file_that_exists, whole
from benchmarks.training_runs import baselines, chart, curves, one_process

from farflung.pictures.figure import write_picture


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.training_runs", description=(__doc__ or "").partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("baselines", help="what simpler models reach on the same data")
    asked.add_argument("subject", choices=sorted(baselines.SUBJECTS))
    asked = commands.add_parser("compare", help="a run's first losses beside those of one process")
    asked.add_argument("job", type=file_that_exists)
    asked.add_argument("run", type=Path)
    asked.add_argument("--steps", type=whole, default=5)
    asked = commands.add_parser("table", help="losses and metrics by step")
    asked.add_argument("run", type=Path)
    asked.add_argument("--every", type=whole, default=50)
    asked = commands.add_parser("picture", help="losses and metrics of runs by step")
    asked.add_argument("file", type=Path)
    asked.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "baselines":
        for words in baselines.SUBJECTS[given.subject]():
            print(words, flush=True)
    elif given.command == "compare":
        print(one_process.compare(given.job, curves.read(given.run), given.steps))
    elif given.command == "table":
        print(*curves.table(curves.read(given.run), given.every), sep="\n")
    else:
        write_picture(chart.draw([curves.read(run) for run in given.runs]), given.file)


main()
