"""What training apart costs in loss and saves in bytes: DiLoCo beside replicas that take the same steps.

    python -m benchmarks.training_apart [--sides SIDE...] [--seeds 3] [--steps 1000] [--picture FILE] [--json]

A small GPT on the Python library's sources (4 layers, 64 wide) trains in two replicas, one at each of two
sites, by the executors and codecs that workers run, in one process. Bytes are the payloads that replicas send
each other, in both directions. The sides:

* synchronous: gradients are added up in each step, dense;
* alone: one replica with its half of each batch, which sends nothing;
* `H/CODEC/WARMUP`: DiLoCo with so many inner steps, that codec of merges and that warm-up. The outer
  optimizer is the default, or as in `H/CODEC/WARMUP/LR/MOMENTUM`.

Losses are those of the first replica on 256 held-out samples after the last step. Each run is kept as a line
of `--kept`, so a study that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from benchmarks.arguments import file_to_write, whole
from benchmarks.learning.subject import Subject, gpt, plain

import farflung
from farflung.broker.core.training.commit import CommitGroup, Verdict
from farflung.opdag.capture import capture
from farflung.pictures.figure import COLOURS, new_figure, style, write_picture
from farflung.planner import plan_graph
from farflung.planner.replicas import evenly_replicated
from farflung.plans import Plan
from farflung.plans.codec_pair import DENSE
from farflung.protocol.messages import UnitReady
from farflung.protocol.worker import Share
from farflung.runtime.executor import SegmentShare
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.parity.steps import named_state
from farflung.runtime.training import Training
from farflung.schedule import Unit

SYNCHRONOUS, ALONE = "synchronous", "alone"
SIDES = (SYNCHRONOUS, ALONE, "20/int4/100", "50/int4/100")
WORKERS = ["a", "b"]


class Row(msgspec.Struct, frozen=True):
    """One run: losses in nats a byte after `at` steps each, and the bytes that replicas sent until then."""

    side: str
    seed: int
    steps: int
    at: list[int]
    losses: list[float]
    sent_bytes: list[int]
    cpu_seconds: float


def main() -> int:
    """Run what is not kept yet, and tell."""
    torch.set_num_threads(1)
    options = arguments()
    subject = gpt(options.steps, quick=True)
    known = {(row.side, row.seed): row for row in _kept(options.kept) if row.steps == options.steps}
    for seed in range(options.seeds):
        for side in options.sides:
            if (side, seed) not in known:
                row = known[side, seed] = run(subject, side, seed)
                _tell(f"{side}, seed {seed}: {row.losses[-1]:.4f} nats, {row.cpu_seconds:.0f} CPU s")
                _keep(options.kept, row)
    rows = [row for (side, seed), row in known.items() if side in options.sides and seed < options.seeds]
    if options.picture is not None:
        draw(rows, options.picture)
    found = summary(rows)
    print(msgspec.json.encode(found).decode() if options.json else table(found))
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", nargs="+", default=list(SIDES), metavar="SIDE")
    parser.add_argument("--seeds", type=whole, default=3, help="how many, from 0 on (default: %(default)s)")
    parser.add_argument("--steps", type=whole, default=1000, help="of a run (default: %(default)s)")
    parser.add_argument("--kept", type=file_to_write, default=Path("runs/training-apart.jsonl"))
    parser.add_argument("--picture", type=file_to_write, help="draw losses by bytes and by steps")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser.parse_args()


def training_of(subject: Subject, side: str, seed: int) -> tuple[Training, str]:
    """The settings of a side, and its codec of sums."""
    training = msgspec.structs.replace(subject.training, seed=seed, validation_microbatches=0)
    if side == ALONE:
        return msgspec.structs.replace(training, microbatches=training.microbatches // 2), DENSE
    if side == SYNCHRONOUS:
        return training, DENSE
    inner, codec, warmup, *outer = side.split("/")
    sync = farflung.DiLoCo(
        inner_steps=int(inner), warmup=int(warmup), outer=farflung.Nesterov(*map(float, outer))
    )
    optimizer = msgspec.structs.replace(training.optimizer, diloco=sync)
    return msgspec.structs.replace(training, optimizer=optimizer), codec


def run(subject: Subject, side: str, seed: int) -> Row:
    """Train one side."""
    training, codec = training_of(subject, side, seed)
    order, held_out = subject.order(seed), subject.validation()
    model = subject.model(seed)
    graph = capture(model, subject.microbatches(order, 0)[0]).graph
    names = WORKERS[:1] if side == ALONE else WORKERS
    one = plan_graph(graph, training.microbatches, training.microbatch_size, names[:1])
    plan = msgspec.structs.replace(evenly_replicated(one.plan, names, len(names)), sum_codec=codec)
    made = replace(one, plan=plan).unfolded(training.microbatch_size, {})
    coded = training.with_codecs(() if codec == DENSE else (codec,))
    pipeline = InProcessPipeline(graph, made.plan, made.segments, named_state(model, graph), coded)
    row = Row(side, seed, training.steps, [], [], [], 0.0)
    sent, began = 0, time.process_time()
    for unit in training.units():
        batches = subject.microbatches(order, unit.step) if unit.train else []
        batches = batches[::2] if side == ALONE else batches
        verdict = decide(made.plan, training, unit, pipeline.run(unit.number, batches))
        pipeline.decide(unit.number, verdict.scale, verdict.scales)
        sent += _sent(pipeline, made.plan, training, unit, codec)
        step = unit.step + unit.train
        if training.units().ends_step(unit) and step % max(1, training.steps // 20) == 0:
            row.at.append(step)
            row.losses.append(plain(model, held_out)[0])
            row.sent_bytes.append(sent)
    return msgspec.structs.replace(row, cpu_seconds=time.process_time() - began)


def decide(plan: Plan, training: Training, unit: Unit, found: Sequence[SegmentShare]) -> Verdict:
    """What the broker decides of a unit."""
    group = CommitGroup.for_plan(plan, 1, unit, is_apart=not training.has_sums(unit))
    for worker in plan.workers():
        mine = [share for share in found if share.segment in plan.segments_of(worker)]
        shares = [Share(s.segment, s.finite, s.loss, s.squares) for s in mine]
        group = group.add(worker, UnitReady("job", 1, unit.number, shares, 0))
    verdict = group.verdict(training.clip)
    if verdict.trouble:
        raise SystemExit(f"unit {unit.number}: {verdict.trouble}")
    return verdict


def _sent(pipeline: InProcessPipeline, plan: Plan, training: Training, unit: Unit, codec: str) -> int:
    """Payload bytes that a unit sent between replicas."""
    if codec != DENSE:
        return sum(link.payload_bytes for link in pipeline.take_sent().values())
    if not training.has_sums(unit):
        return 0
    return sum(one.bytes * one.messages_to(segment) for one in plan.sums for segment in one.holders())


def summary(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Each side's loss, beside the synchronous one of the same seed, and its bytes."""
    whole_bytes = {row.seed: row.sent_bytes[-1] for row in rows if row.side == SYNCHRONOUS}
    losses = {row.seed: row.losses[-1] for row in rows if row.side == SYNCHRONOUS}
    found: list[dict[str, object]] = []
    for side in dict.fromkeys(row.side for row in rows):
        mine = [row for row in rows if row.side == side]
        paired = [row for row in mine if row.seed in losses]
        gaps = [row.losses[-1] / losses[row.seed] - 1 for row in paired]
        fewer = [whole_bytes[row.seed] / row.sent_bytes[-1] for row in paired if row.sent_bytes[-1]]
        found.append(
            {
                "side": side,
                "seeds": len(mine),
                "loss": statistics.mean(row.losses[-1] for row in mine),
                "losses": [row.losses[-1] for row in mine],
                "gap": statistics.mean(gaps) if gaps else None,
                "gaps": gaps,
                "sent_bytes": mine[0].sent_bytes[-1],
                "fewer_bytes": min(fewer) if fewer else None,
            }
        )
    return found


def table(found: Sequence[dict[str, object]]) -> str:
    """The summary as Markdown."""
    lines = ["| side | loss, nats a byte | beside synchronous | MB sent | fewer bytes |"]
    lines.append("|---|---|---|---|---|")
    for one in found:
        gap, fewer = one["gap"], one["fewer_bytes"]
        lines.append(
            f"| {one['side']} | {one['loss']:.4f} | {'' if gap is None else f'{gap:+.2%}'} |"
            f" {one['sent_bytes'] / 1e6:.3g} | {'' if fewer is None else f'1/{fewer:.0f}'} |"  # type: ignore[operator]
        )
    return "\n".join(lines)


@style()
def draw(rows: Sequence[Row], path: Path) -> None:
    """Losses by steps and by bytes, a line for each side's mean over its seeds."""
    drawn = new_figure(860, 360)
    by_steps, by_bytes = drawn.add_axes((0.07, 0.14, 0.42, 0.74)), drawn.add_axes((0.56, 0.14, 0.42, 0.74))
    for colour, side in zip(COLOURS, dict.fromkeys(row.side for row in rows), strict=False):
        mine = [row for row in rows if row.side == side]
        losses = [statistics.mean(each) for each in zip(*(row.losses for row in mine), strict=True)]
        by_steps.plot(mine[0].at, losses, color=colour, label=_words(side))
        if mine[0].sent_bytes[-1]:
            by_bytes.plot([sent / 1e6 for sent in mine[0].sent_bytes], losses, color=colour)
    by_steps.set(xlabel="steps", ylabel="held-out loss, nats a byte")
    by_bytes.set(xscale="log", xlabel="MB that replicas sent")
    by_bytes.xaxis.set_major_formatter(lambda sent, _: f"{sent:g}")
    by_steps.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    write_picture(drawn, path)


def _words(side: str) -> str:
    inner, *rest = side.split("/")
    return f"{inner} inner steps, {rest[0]}" if rest else side


def _kept(path: Path) -> list[Row]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def _keep(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
