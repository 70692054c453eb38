"""Training settings on which every worker, the broker and the submitter must agree.

Seeds of random ops are a function of (job seed, step, microbatch, node), so a repeated step draws the same.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.opdag.graph import MOST_BUCKETS, Precision
from farflung.plans.codec_pair import CODEC_FORMAT, Codebook
from farflung.runtime.monitoring import Monitor
from farflung.runtime.optimizers.declared import Optimizer
from farflung.schedule import Unit, Units
from farflung.seeds import mix

ClipBy = Literal["global", "segment"]
"""Whose norm `clip` bounds: that of all gradients together, or of each segment's."""

MOST_NOISE = 100.0
"""The largest noise on what leaves home: a hundredth of such a message is signal."""

Whole = Annotated[int, Meta(ge=1, le=10**9)]


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batch arithmetic, optimizer, seed and clipping of one job.

    A step runs `microbatches` of `microbatch_size` samples; the loss of each is weighted 1/microbatches.
    `clip` bounds the norm of all gradients, or with `clip_by` of each segment's. Evaluation runs
    `validation_microbatches` (0: none) before the first step, after the last and after each `validate_every`
    steps; `validate_twice` runs it with codecs and then without any, `validate_plain` without any only.
    Unless `validate_first`, it does not run before the first step. An `emulated` job runs on emulated devices
    only: its inputs and messages are real, its state never changes and it has no losses. `precision` says how
    the graph was captured; its casts are nodes, so it does not change how the graph runs. `codecs` are all
    that links may use at any step; a frame names its codec by number, in the format `codec_format`. With
    `sample_codecs`, workers report what the codecs do to some of the job's own tensors (`runtime.sample`).
    Workers have memory for `copies` whole copies of their state beside the current one, which checkpoints
    take while training goes on. A `deterministic` job has repeatable bits on GPUs, too, which takes longer
    there; on CPUs all jobs have. A `compiled` one runs kernels on GPUs that torch's compiler makes, which
    changes numbers there. `monitors` say what evaluations decide. Other workers run the share `verify` of all
    past work again and compare it. Each microbatch has one of the `lengths`, ascending, if there are any: the
    graph has the sizes of the longest, and a bucket for each other one. `home_noise` is the deviation of the
    noise on what leaves home workers, by each row's root mean square (`runtime.home_noise`): 0 adds none.
    """

    steps: Whole
    microbatches: Annotated[int, Meta(ge=1, le=10**6)]
    microbatch_size: Whole
    optimizer: Optimizer
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    clip: float | None = None
    validate_every: Whole | None = None
    validation_microbatches: Annotated[int, Meta(ge=0, le=10**6)] = 0
    validate_twice: bool = False
    emulated: bool = False
    precision: Precision = "float32"
    codecs: Codebook = ()
    codec_format: Annotated[int, Meta(ge=1, le=10**6)] = 1
    sample_codecs: bool = False
    copies: Annotated[int, Meta(ge=0, le=2)] = 0
    deterministic: bool = False
    compiled: bool = False
    monitors: Annotated[tuple[Monitor, ...], Meta(max_length=2)] = ()
    verify: Annotated[float, Meta(ge=0, le=1)] = 0.0
    lengths: Annotated[tuple[Whole, ...], Meta(max_length=MOST_BUCKETS)] = ()
    clip_by: ClipBy = "global"
    validate_plain: bool = False
    validate_first: bool = True
    home_noise: Annotated[float, Meta(ge=0, le=MOST_NOISE)] = 0.0

    def __post_init__(self) -> None:
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip must be a positive number, found {self.clip}")
        if list(self.lengths) != sorted({*self.lengths}):
            raise ValueError(f"lengths must be ascending, found {self.lengths}")
        if not math.isfinite(self.home_noise):
            raise ValueError(f"home_noise must be a number, found {self.home_noise}")

    def with_codecs(self, codecs: Codebook, sample: bool = False) -> Training:
        """A copy whose links may use these codecs, in this version's format."""
        return msgspec.structs.replace(self, codecs=codecs, codec_format=CODEC_FORMAT, sample_codecs=sample)

    def evaluating_on(self, microbatches: int) -> Training:
        """A copy whose evaluations take so many microbatches; the same if that is 0, or it has none."""
        if not (microbatches and self.validation_microbatches):
            return self
        return msgspec.structs.replace(self, validation_microbatches=microbatches)

    def with_copies(self, copies: int) -> Training:
        """A copy whose workers have memory for at least so many copies of their state."""
        return msgspec.structs.replace(self, copies=max(self.copies, copies))

    @property
    def global_clip(self) -> float | None:
        """The bound of the norm of all gradients together, if there is one."""
        return self.clip if self.clip_by == "global" else None

    @property
    def segment_clip(self) -> float | None:
        """The bound of the norm of each segment's gradients, if there is one."""
        return self.clip if self.clip_by == "segment" else None

    @property
    def buckets(self) -> int:
        """How many lengths microbatches can have, at least 1."""
        return max(1, len(self.lengths))

    @property
    def keeps_best(self) -> bool:
        """Whether the best weights are copied to the submitter."""
        return any(monitor.keeps for monitor in self.monitors)

    def units(self) -> Units:
        """Every unit of the job in order."""
        diloco = self.optimizer.diloco
        return Units(
            self.steps,
            self.microbatches,
            self.validate_every,
            self.validation_microbatches,
            self.validate_twice,
            None if diloco is None else diloco.rounds,
            self.validate_plain,
            self.validate_first,
        )

    @property
    def inner_steps(self) -> int:
        """Steps between two sums over pipelines: 1 unless they train apart."""
        return 1 if self.optimizer.diloco is None else self.optimizer.diloco.inner_steps

    def has_sums(self, unit: Unit) -> bool:
        """Whether pipelines add up in `unit`: gradients in a step, what was learned apart in a merge."""
        return unit.merges or (unit.train and self.optimizer.diloco is None)


def microbatch_seed(seed: int, train: bool, step: int, microbatch: int) -> int:
    """The state from which each random node of a microbatch derives its seed by `mix(state, node)`.

    `microbatch` counts over all replicas; evaluation passes have a separate stream.
    """
    return mix(mix(mix(seed, 0 if train else 1), step), microbatch)
