"""Rows and summary of a run, as scripts read them. Keys may be added, but never renamed or removed."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from farflung.schedule import Unit
from farflung.text import count_of, format_seconds, printable


class Outcome(NamedTuple):
    """How a run ended: `state` is done, failed, cancelled or left, `reason` one line, empty when done."""

    state: str
    reason: str

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


class Claim(NamedTuple):
    """The mean `loss` that the fleet reported of the weights evaluated in `unit`, and the `first` one."""

    unit: Unit
    loss: float
    first: float


class LinkRow(msgspec.Struct, frozen=True):
    """What one worker sent to another, in a step or in a run.

    `tensor_bytes` is the size of the tensors in fp32, `wire_bytes` what the link carried, including framing
    and all other messages; `ratio` is the first over the second. `coding_seconds` is the CPU time that
    `source` spent on codecs for this link: encoding what it sent and decoding what came back.
    """

    source: str
    target: str
    tensor_bytes: int
    wire_bytes: int
    ratio: float | None
    coding_seconds: float = 0.0


class StepRow(msgspec.Struct, frozen=True):
    """One applied training step in `metrics.jsonl`.

    `step` counts from 1. `seconds` is from the end of the unit before to the end of this one,
    `bytes_on_wire` what all links carried meanwhile, framing included; `bytes_copied`, what workers sent of
    their state, comes on top. They are None where this process was away at one of these ends, and so cannot
    know them, nor `at`, the Unix time of the step's end. `gradient_norm` is before clipping.
    Of two rows for a step the one with the higher `attempt` counts. On `emulated` devices nothing is
    computed, so `loss` and `gradient_norm` are None. `links` are those between workers: what is still queued
    when a worker is through with a step counts for the next one.

    `row["loss"]` is `row.loss`, and `dict(row)` has all of them.
    """

    step: int
    loss: float | None
    samples: int
    seconds: float | None
    samples_per_second: float | None
    bytes_on_wire: int | None
    attempt: int
    learning_rate: float
    gradient_norm: float | None
    emulated: bool = False
    links: list[LinkRow] = []
    bytes_copied: int | None = 0
    at: float | None = None

    def __getitem__(self, name: str) -> Any:
        """The field with this name; raises KeyError if there is none."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.__struct_fields__


class ValidationRow(msgspec.Struct, frozen=True):
    """One evaluation in `metrics.jsonl`, after `step` steps; `metrics` are empty without `Job(metrics=)`.

    Of a step that the run did again, the row with the higher `attempt` counts. A metric whose value is not
    finite is left out. `at` is the Unix time of its end; None where this process was away. Where replicas
    train apart, an evaluation between merges is `of_first_replica`: it says nothing of the others.
    """

    step: int
    validation_loss: float | None
    metrics: dict[str, float]
    attempt: int
    at: float | None = None
    of_first_replica: bool = False


class BaseBytes(NamedTuple):
    """Bytes of base weights that workers had on their disks, that were sent to them, and that they fetched.

    They are those of the tensors in memory: a file of bfloat16 may hold half as many.
    """

    cached: int = 0
    sent: int = 0
    fetched: int = 0

    def __add__(self, other: object) -> BaseBytes:
        assert isinstance(other, BaseBytes)
        return BaseBytes(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NO_BASE = BaseBytes()


class CorpusRecord(msgspec.Struct, frozen=True):
    """The text that was trained on, recorded because Python versions ship different libraries."""

    name: str
    sha256: str
    bytes: int


class Best(msgspec.Struct, frozen=True):
    """The evaluation after `step` steps, in which `metric` had the best value of the run."""

    metric: str
    value: float
    step: int


class HomeLosses(msgspec.Struct, frozen=True):
    """Losses that the submitter computed on `microbatches` of the `whole` validation set.

    `final` is that of the weights that came home, `initial` that of those the run began with; None of a
    resumed run.
    """

    microbatches: int
    whole: int
    initial: float | None
    final: float

    def __str__(self) -> str:
        """One line."""
        losses = f"{self.final:.4f}" if self.initial is None else f"{self.initial:.4f} -> {self.final:.4f}"
        where = f"{self.microbatches} of {self.whole} microbatches, computed on this machine"
        return f"validation loss on {where}: {losses}"


class Summary(msgspec.Struct, frozen=True):
    """`summary.json`: how a run ended.

    `state` is done, failed or cancelled, `reason` one line (empty when done, unless the run stopped early).
    `steps` were applied. `bytes_on_wire` is over all units, `loading_bytes` what the first state took before
    them. `weights_step` is the step that `model.safetensors` holds, None if there is no such file. A run on
    `emulated` devices has neither losses nor weights. `step_seconds` is the median of the newest steps. Where
    `scheduler` planned on what is known of the fleet, `predicted_step_seconds` and `predicted_bottleneck` are
    what it expected; they are None and empty where nothing is known, as with `train --local`. Where
    `prediction_is_brief`, no device was expected to compute for 1 ms a microbatch: what Python takes is not
    predicted, and steps may take far longer. `links` are sums over all units, and `ratio` is that of all of
    them together. `validation_loss` is that of the weights alone; where codecs are chosen while it runs,
    `validation_loss_with_codecs` is that of the links as they were written, and `metrics` are those of the
    newest evaluation, after `validation_step` steps. `checkpoint_step` is that of the newest checkpoint, None
    if there is none. `best` is the best evaluation of a job with `keep_best`, None before any. An evaluation
    took so many `validation_microbatches`; where these were few, `home_losses` are those of more.
    """

    state: str
    reason: str
    steps: int
    train_loss: float | None
    validation_loss: float | None
    initial_validation_loss: float | None
    seconds: float
    loading_seconds: float | None
    workers: int
    bytes_on_wire: int
    loading_bytes: int
    weights_step: int | None
    job: str
    corpus: CorpusRecord | None
    emulated: bool = False
    step_seconds: float | None = None
    predicted_step_seconds: float | None = None
    predicted_bottleneck: str = ""
    scheduler: str = ""
    links: list[LinkRow] = []
    ratio: float | None = None
    validation_loss_with_codecs: float | None = None
    prediction_is_brief: bool = False
    checkpoint_step: int | None = None
    metrics: dict[str, float] = {}
    best: Best | None = None
    validation_microbatches: int | None = None
    home_losses: HomeLosses | None = None
    validation_step: int | None = None

    def __str__(self) -> str:
        """One line: the state, the steps, how long they took, and the losses."""
        words = f"{self.state} after {count_of(self.steps, 'step')} in {format_seconds(self.seconds)}"
        losses = [loss for loss in (self.initial_validation_loss, self.validation_loss) if loss is not None]
        if losses:  # of one evaluation both are the same
            words += f", validation loss {' -> '.join(dict.fromkeys(f'{loss:.4f}' for loss in losses))}"
        return printable(f"{words}: {self.reason}" if self.reason else words)
