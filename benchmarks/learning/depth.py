"""How what codecs lose grows with the boundaries that values cross: one model, cut in 4, 8 and 16.

The course was fixed before the runs that are kept: 80 steps, 20 of them warm-up, gradients clipped at norm
1, seeds 0 to 4. What decides is the held-out loss of the last weights in one piece, beside the dense run of
the same seed, and the mean training loss of the last 20 steps, whose batches are the same for both. A run
*stalled* if its held-out loss fell by less than half as far as the dense one's, which turned out to be too
coarse: most of the fall is learning how frequent bytes are. A control without warm-up and clipping shows
whether these are what keeps runs from stalling. Dense links change no number, so one dense run of a seed
serves all depths.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import msgspec
from benchmarks.learning.outcome import Outcome
from benchmarks.learning.run import Tell, train
from benchmarks.learning.subject import Subject, deep_gpt, deep_resnet
from benchmarks.learning.way import DENSE, Way

from farflung.errors import FarflungError
from farflung.plans.codec_pair import CODEC_FORMAT
from farflung.runtime.training import Training

KEPT = Path(__file__).with_name("depths.jsonl")
SEEDS = 5
SEGMENTS = (4, 8, 16)
WAYS = ("axes10/axes100-dithered", "axes6/axes60-dithered")
ROUGHER = ("axes30/axes100-dithered",)
"""What `auto` may choose over three boundaries and not over more: its cliff is between axes30 and axes60."""
CONTROL = 8
"""Segments of the runs without warm-up and clipping."""
TAIL = 20
STALLED = 0.5


@dataclass(frozen=True)
class Case:
    """One run to make."""

    model: str
    warmup: bool
    segments: int
    way: str
    seed: int

    @property
    def dense(self) -> Case:
        """The run that it is compared with."""
        return Case(self.model, self.warmup, SEGMENTS[0] if self.warmup else CONTROL, DENSE, self.seed)

    def subject(self) -> Subject:
        """What is trained, by which course."""
        return deep_resnet(self.segments) if self.model == "resnet" else deep_gpt(self.segments, self.warmup)

    def key(self, subject: Subject) -> str:
        """The digest of all that decides the run but farflung's code: course, weights, data and codec."""
        digest = hashlib.sha256(msgspec.json.encode([self.way, self.segments, CODEC_FORMAT, self.seed]))
        digest.update(msgspec.json.encode(_said(subject.training)))
        for weight in subject.model(self.seed).state_dict().values():
            digest.update(weight.numpy().tobytes())
        batches = [*subject.microbatches(subject.order(self.seed), 0), *subject.validation()]
        for tensor in (tensor for batch in batches for _, tensor in sorted(batch.items())):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()[:16]


def _said(training: Training) -> dict[str, object]:
    """What a course says that is not so by default: a setting that is new later leaves it as it was."""
    always = ("steps", "microbatches", "microbatch_size", "optimizer")
    default = Training(*(getattr(training, name) for name in always))
    fields = {name: getattr(training, name) for name in Training.__struct_fields__}
    return {
        name: value for name, value in fields.items() if name in always or value != getattr(default, name)
    }


class Kept(msgspec.Struct, frozen=True):
    """A line of the file: a case, the digest of what decided it, and what came of it."""

    key: str
    model: str
    warmup: bool
    segments: int
    outcome: Outcome

    @property
    def case(self) -> Case:
        """What was run."""
        return Case(self.model, self.warmup, self.segments, self.outcome.way, self.outcome.seed)


def cases(seeds: int = SEEDS) -> Iterator[Case]:
    """All runs, those first that decide most: a study that was interrupted is whole as far as it got."""
    rough, gentle = WAYS
    for model, segments, way in (
        ("gpt", 4, DENSE), ("gpt", 16, rough), ("gpt", 4, rough), ("gpt", 16, gentle),
        ("resnet", 4, DENSE), ("resnet", 16, rough), ("resnet", 4, rough),
    ):  # fmt: skip
        yield from (Case(model, True, segments, way, seed) for seed in range(seeds))
    yield from (Case("gpt", False, CONTROL, way, seed) for seed in range(seeds) for way in (DENSE, rough))
    for segments in (8, 4, 16):
        for way in (*WAYS, *ROUGHER, "int8"):
            yield from (
                Case(model, True, segments, way, seed) for model in ("gpt", "resnet") for seed in range(seeds)
            )


def study(path: Path, wanted: list[Case], tell: Tell, run: bool = True) -> list[Kept]:
    """The runs of `wanted`; what the file lacks is run and added to it, or left out without `run`."""
    kept = {(line.case, line.key): line for line in read(path)}
    found = []
    for case in dict.fromkeys(wanted):
        subject = case.subject()
        at = (case, case.key(subject))
        if at not in kept and not run:
            continue
        if at not in kept:
            outcome = train(subject, Way.of(case.way), case.seed, lambda line: None)
            kept[at] = Kept(at[1], case.model, case.warmup, case.segments, outcome)
            append(path, kept[at])
            tell(f"{case}: {outcome.last.plain:.4f}, {outcome.cpu_seconds:.0f} CPU s")
        found.append(kept[at])
    return found


def read(path: Path = KEPT) -> list[Kept]:
    """The lines of a file, if there is one; one that was cut off at the end is left out.

    Raises
    ------
    FarflungError
        Another line is damaged.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=Kept))
        except msgspec.MsgspecError as error:
            raise FarflungError(f"{path}, line {number} is no run: {error}") from None
    return found


def append(path: Path, line: Kept) -> None:
    """Add a line; what a killed process left of one is dropped first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(line) + b"\n")


class Row(msgspec.Struct, frozen=True):
    """One way at one depth, beside the dense runs of the same seeds.

    `loss_gap` and `training_gap` are (mean, low, high) in percent of dense, of the held-out loss and of the
    last training losses, with the 90 % interval of the mean by Student's t; that of one seed is its value.
    `lost_points` is the accuracy lost, in points, of what classifies.
    """

    model: str
    warmup: bool
    segments: int
    way: str
    seeds: list[int]
    ratio: float
    loss: float
    loss_gap: tuple[float, float, float]
    training_gap: tuple[float, float, float]
    lost_points: float | None
    stalled: int


def rows(runs: Sequence[Kept]) -> list[Row]:
    """One for each way and depth whose runs have dense ones beside them."""
    dense = {run.case.dense: run.outcome for run in runs if run.outcome.way == DENSE}
    groups: dict[tuple[str, bool, str, int], list[tuple[Outcome, Outcome]]] = {}
    for run in runs:
        if run.case.dense in dense:
            key = (run.model, not run.warmup, run.outcome.way, run.segments)
            groups.setdefault(key, []).append((run.outcome, dense[run.case.dense]))
    return [_row(key, pairs) for key, pairs in sorted(groups.items(), key=_place)]


def _place(group: tuple[tuple[str, bool, str, int], object]) -> tuple[str, bool, int, int]:
    model, control, way, segments = group[0]
    order = (DENSE, "int8", *WAYS[::-1], *ROUGHER)
    return model, control, order.index(way), segments


def _row(key: tuple[str, bool, str, int], pairs: list[tuple[Outcome, Outcome]]) -> Row:
    model, control, way, segments = key
    runs = [run for run, _ in pairs]
    points = [
        100 * (dense.last.accuracy - run.last.accuracy)
        for run, dense in pairs
        if run.last.accuracy is not None and dense.last.accuracy is not None
    ]
    return Row(
        model, not control, segments, way, sorted(run.seed for run in runs),
        fmean(run.ratio for run in runs), fmean(run.last.plain for run in runs),
        spread([100 * (run.last.plain / dense.last.plain - 1) for run, dense in pairs]),
        spread([100 * (fmean(run.losses[-TAIL:]) / fmean(dense.losses[-TAIL:]) - 1) for run, dense in pairs]),
        fmean(points) if points else None,
        sum(_fall(run) < STALLED * _fall(dense) for run, dense in pairs),
    )  # fmt: skip


def _fall(run: Outcome) -> float:
    return run.curve[0].plain - run.last.plain


def spread(figures: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 90 % interval of the mean, by Student's t."""
    from scipy.stats import t

    mean = fmean(figures)
    if len(figures) < 2:
        return mean, mean, mean
    half = float(t.ppf(0.95, len(figures) - 1)) * stdev(figures) / math.sqrt(len(figures))
    return mean, mean - half, mean + half


def table(found: Sequence[Row]) -> str:
    """As Markdown."""
    lines = [
        "| model | boundaries | links | ratio | held-out loss | held-out, % | last 20 training losses, % "
        "| accuracy lost, points | stalled | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        name = row.model if row.warmup else f"{row.model}, no warm-up or clipping"
        gaps = ["", ""] if row.way == DENSE else [_words(gap) for gap in (row.loss_gap, row.training_gap)]
        points = "" if row.lost_points is None or row.way == DENSE else f"{row.lost_points:+.2f}"
        depth = "any" if row.way == DENSE else f"{row.segments - 1}"
        lines.append(
            f"| {name} | {depth} | {row.way} | {row.ratio:.1f} | {row.loss:.4f} | {gaps[0]} | {gaps[1]} "
            f"| {points} | {row.stalled} | {len(row.seeds)} |"
        )
    return "\n".join(lines)


def _words(gap: tuple[float, float, float]) -> str:
    mean, low, high = gap
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"
