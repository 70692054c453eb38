"""Does it still learn? Validation loss after equal steps, for ways to write what crosses between segments.

    python benchmarks/convergence.py [--ways WAY...] [--seeds 3] [--quick] [--json]

A GPT on the Python library's sources and a ResNet-18 on scikit-learn's digits are cut in four and trained by
the executors that workers run, over links that code. Each run is kept as a file, so a study that was
interrupted goes on where it was. A way is a rung, several in turn (`benchmarks/learning/way.py`), or what a
policy chooses: `auto:MBPS`, `adatopk:RATIO:MBPS`, `uniform:RATIO` (`benchmarks/learning/setting.py`). One
thread.

    python benchmarks/convergence.py --depth [--kept] [--seeds 5] [--json]

What codecs lose over 3, 7 and 15 boundaries (`benchmarks/learning/depth.py`). Runs are kept in
`benchmarks/learning/depths.jsonl`; what is not there is run, or left out with `--kept`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.arguments import file_to_write, folder_path, whole
from benchmarks.learning import chart, depth, report
from benchmarks.learning.outcome import Outcome, keep, kept
from benchmarks.learning.run import plan_of, train
from benchmarks.learning.setting import MBPS, chosen, is_policy
from benchmarks.learning.subject import Subject, gpt, resnet
from benchmarks.learning.way import DENSE, Way, halves

from farflung.codec.catalogue import recipe
from farflung.errors import FarflungError
from farflung.files import write_atomically
from farflung.pictures.figure import write_picture
from farflung.planner.codecs import ladder
from farflung.plans.codec_policy import LADDER

WAYS = (
    *(f"auto:{mbps}" for mbps in MBPS), "adatopk:4:8", "uniform:4",
    *LADDER[2:], "token-mean:axes34/axes150-dithered",
)  # fmt: skip
QUICK_WAYS = ("auto:8", "int8", "row-topk30-int4/masked30-int4@0.5,int8/int4-stochastic")
STEPS = {"gpt": 450, "resnet": 200}
QUICK_STEPS = {"gpt": 30, "resnet": 20}
SUBJECTS = {"gpt": gpt, "resnet": resnet}


def main() -> int:
    """Run what is not there yet, and tell; 1 if a way cannot be run."""
    options = arguments()
    try:
        if options.depth:
            print(_depths(options))
            return 0
        found = [row for name in options.subjects for row in study(name, options)]
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
    parser.add_argument("--seeds", type=whole, help="how many, from 0 on (default: 3; with --depth, 5)")
    parser.add_argument(
        "--depth", action="store_true", help="how losses grow with boundaries, by its own course"
    )
    parser.add_argument("--kept", action="store_true", help="with --depth: run nothing, show what is kept")
    parser.add_argument("--steps", type=whole, help="of a run (default: 450 and 200)")
    parser.add_argument("--folder", type=folder_path, help="where runs are kept (default: runs/convergence)")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps, one seed: a trial")
    parser.add_argument("--picture", type=folder_path, help="a folder for pictures")
    parser.add_argument(
        "--losses", type=file_to_write, help="put what the GPT lost into this rate-loss table"
    )
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    return parser.parse_args()


def study(name: str, options: argparse.Namespace) -> list[report.Row]:
    """All runs of one model, from files where they are there, and what they say."""
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)[name]
    subject = SUBJECTS[name](steps, options.quick)
    folder = (options.folder or Path("runs/convergence")) / f"{subject.name}-{steps}"
    ways = _ways(subject, options.ways or (QUICK_WAYS if options.quick else WAYS))
    for seed in range(1 if options.quick else options.seeds or 3):
        for way in ways.values():
            if kept(folder, subject.name, way.text, seed) is None:
                keep(folder, _run(subject, way, seed))
    outcomes = [msgspec.json.decode(path.read_bytes(), type=Outcome) for path in folder.glob("*.json")]
    names: dict[str, str] = {}
    for name, way in ways.items():
        names[way.text] = f"{names[way.text]}, {name}" if way.text in names else name
    found = report.rows(outcomes, names)
    _write(options, subject, found)
    return found


def _depths(options: argparse.Namespace) -> str:
    wanted = list(depth.cases(options.seeds or depth.SEEDS))
    found = depth.rows(depth.study(depth.KEPT, wanted, _tell, run=not options.kept))
    return msgspec.json.encode(found).decode() if options.json else depth.table(found)


def _ways(subject: Subject, asked: Sequence[str]) -> dict[str, Way]:
    """Dense and what was asked for, by name; what a policy chooses is named with it."""
    ways = {DENSE: Way.of(DENSE)}
    policies = [text for text in asked if is_policy(text)]
    plan = plan_of(subject) if policies else None
    for text in dict.fromkeys(asked):
        if plan is not None and text in policies:
            way = chosen(text, plan)
            ways[f"{text} ({way.text})"] = way
        else:
            ways[text] = Way.of(text)
    for rung in {rung for way in ways.values() for rung in way.rungs}:
        for name in halves(rung):
            recipe(name)
    return ways


def _run(subject: Subject, way: Way, seed: int) -> Outcome:
    outcome = train(subject, way, seed, _tell)
    last = outcome.last
    _tell(
        f"{subject.name} {way.text} seed {seed}: {outcome.ratio:.2f}x, in the loop {last.in_loop:.4f}, "
        f"plain {last.plain:.4f}, {outcome.cpu_seconds:.0f} CPU s"
    )
    return outcome


def _write(options: argparse.Namespace, subject: Subject, found: list[report.Row]) -> None:
    title = f"{subject.title}, {subject.training.steps} steps"
    if options.picture is not None:
        options.picture.mkdir(parents=True, exist_ok=True)
        write_picture(chart.draw(title, found), options.picture / f"convergence-{subject.name}.svg")
    if options.losses is not None and subject.name.startswith("gpt"):
        before = ladder.read(options.losses.read_bytes()) if options.losses.exists() else None
        table = report.losses(found, subject.name, title, before)
        write_atomically(options.losses, ladder.written(table))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
