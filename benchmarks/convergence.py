"""Does it still learn? Validation loss after equal steps, for ways to write what crosses between segments.

    python benchmarks/convergence.py [--ways WAY...] [--seeds 3] [--quick] [--json]

A GPT on the Python library's sources and a ResNet-18 on scikit-learn's digits are cut in four and trained by
the executors that workers run, over links that code. Each run is kept as a file, so a study that was
interrupted goes on where it was. A way is a rung of `docs/codecs.md`, or several in turn
(`benchmarks/learning/way.py`). One thread.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.learning import chart, report
from benchmarks.learning.outcome import Outcome, keep, kept
from benchmarks.learning.recipes import require_codecs
from benchmarks.learning.run import train
from benchmarks.learning.subject import Subject, gpt, resnet
from benchmarks.learning.way import DENSE, Way

from farflung.errors import FarflungError
from farflung.files import write_atomically

WAYS = (DENSE, "int8", "int8/int4-stochastic", "hadamard4/eden4", "row-topk30-int4/masked30-int4")
QUICK_WAYS = (DENSE, "int8", "row-topk30-int4/masked30-int4@0.5,int8/int4-stochastic")
STEPS = {"gpt": 450, "resnet": 200}
QUICK_STEPS = {"gpt": 30, "resnet": 20}
SUBJECTS = {"gpt": gpt, "resnet": resnet}


def main() -> int:
    """Run what is not there yet, and tell; 1 if a way cannot be run."""
    options = arguments()
    try:
        outcomes = [run for name in options.subjects for run in study(name, options)]
        found = report.rows(outcomes)
        for name in options.subjects:
            _write(options, name, [row for row in found if row.subject.startswith(name)])
    except (FarflungError, ValueError) as error:
        print(f"convergence.py: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(found).decode() if options.json else report.table(found))
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="beside dense; what is kept is shown, too")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="of a run (default: 450 and 200)")
    parser.add_argument("--folder", type=Path, help="where runs are kept (default: runs/convergence)")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps, one seed: a trial")
    parser.add_argument("--picture", type=Path, help="a folder for pictures")
    parser.add_argument("--losses", type=Path, help="write the rate-loss table of the GPT there, as JSON")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    return parser.parse_args()


def study(name: str, options: argparse.Namespace) -> list[Outcome]:
    """All runs of one model, from files where they are there."""
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)[name]
    subject = SUBJECTS[name](steps, options.quick)
    folder = (options.folder or Path("runs/convergence")) / f"{subject.name}-{steps}"
    asked = options.ways or (QUICK_WAYS if options.quick else WAYS)
    ways = [Way.of(text) for text in dict.fromkeys((DENSE, *asked))]
    for way in ways:
        require_codecs(way)
    for seed in range(1 if options.quick else options.seeds):
        for way in ways:
            if kept(folder, subject.name, way.text, seed) is None:
                keep(folder, _run(subject, way, seed))
    return [msgspec.json.decode(path.read_bytes(), type=Outcome) for path in sorted(folder.glob("*.json"))]


def _run(subject: Subject, way: Way, seed: int) -> Outcome:
    outcome = train(subject, way, seed, _tell)
    last = outcome.last
    _tell(
        f"{subject.name} {way.text} seed {seed}: {outcome.ratio:.2f}x, in the loop {last.in_loop:.4f}, "
        f"plain {last.plain:.4f}, {outcome.cpu_seconds:.0f} CPU s"
    )
    return outcome


def _write(options: argparse.Namespace, name: str, found: list[report.Row]) -> None:
    if options.picture is not None:
        options.picture.mkdir(parents=True, exist_ok=True)
        drawn = chart.draw(f"{name}: loss after equal steps", found)
        write_atomically(options.picture / f"convergence-{name}.svg", drawn.encode())
    if options.losses is not None and name == "gpt":
        table = report.losses(found, found[0].subject)
        write_atomically(options.losses, msgspec.json.format(msgspec.json.encode(table)) + b"\n")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
