"""`Job`: what a user declares to train a model (the model, its data, and the training settings)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from farflung.client.api.evaluations import Evaluations, evaluations_of
from farflung.client.api.job_fields import (
    MAXIMUM_MICROBATCHES,
    has_values,
    require_even_batch,
    require_fields,
    require_items,
    require_lengths,
)
from farflung.client.api.monitors import EarlyStopping, KeepBest
from farflung.data import Collate, Pad, SampleOrder, collate
from farflung.data.loaders import (
    LoaderParts,
    is_loader,
    is_same_collate,
    parts_of,
    sampled_items,
)
from farflung.data.sampling import require_own_generator
from farflung.data.streams import StreamItems, StreamOrder, first_items, is_stream
from farflung.errors import JobError
from farflung.metrics import Perplexity
from farflung.opdag.graph import Precision
from farflung.opdag.raw_data import DataKind
from farflung.plans.codec_pair import DENSE
from farflung.plans.codec_policy import is_auto
from farflung.plans.wishes import MAX_LOSS_GAP
from farflung.quantization import QuantizedFormat
from farflung.runtime.optimizers.declared import Optimizer
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.runtime.training import ClipBy, Training

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import DataLoader

SEARCHED_ITEMS = 256
"""Items among which examples of a length are looked for."""


class Dataset(Protocol):
    """A map-style data set, as in `torch.utils.data`, whose items are dicts of tensors."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


_WARM_UP = 0.2
"""Largest share of the rate in the first step of a schedule that counts as warm-up."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One training run, as the job file's `job()` returns it.

    Parameters
    ----------
    model
        Called with a collated batch as keyword arguments. It returns the mean scalar loss, or an object or
        dict with `loss`, unless `loss` computes it. A model on the meta device can be captured, planned and
        emulated; to train it, give `weights`.
    data, validation
        Map-style data sets whose items are dicts of tensors of equal shapes, or streams of them, such as a
        torch `IterableDataset`, which keep their own order. Or a torch `DataLoader` over one, whose
        `batch_size` is the job's batch: its data set, sampler, collate and `num_workers` are used; plain
        shuffling becomes the job's own, by its seed. For `validation`, the items that its sampler gives when
        drawn once, by the job's seed; of a stream the first ones, which stay in memory.
    optimizer
        `farflung.AdamW`, `SGD`, `Lion`, `Adafactor` or `Muon`.
    batch
        Samples of one step, over all microbatches.
    microbatches
        Number of equal parts of a batch, each sent through the pipeline by itself; divides `batch`. Gradients
        are accumulated over them before the step is applied. A worker never holds more of them at once than
        the plan's window.
    steps
        Optimizer steps of the run.
    loss
        `loss(outputs, batch)` computes the mean scalar loss from the model's outputs.
    counted
        What the loss averages over, when samples have different numbers of targets (for example masked
        labels): `counted(batch)` gives the number of targets in a microbatch, and a text names labels, of
        which those that are not -100 count. Then the loss of a step is the mean over all targets of its
        batch, as in one process, and not the mean of its microbatches' means. All microbatches of a step are
        read before the first one is sent. Validation items are read once more than they are evaluated, to
        count their targets; if `validation` masks at random, later readings keep these weights.
    seed
        Fixes the order of the data and every random number of the training.
    clip, clip_by
        Upper bound of the norm of all gradients ("global"), or of each segment's own ("segment"). By segment,
        each worker clips what it has, as if `torch.nn.utils.clip_grad_norm_` were called for each segment's
        parameters: a segment with a large gradient no longer scales the others down. The numbers then
        depend on where the model is cut, so a run on other workers, or one that moves to another plan,
        computes another run.
    codec
        The codec pair of links between workers, such as "int8/int4-stochastic"; a sequence of them
        ("PAIR@0.85,PAIR" switches to the second after 85 % of the steps); or a selector: "auto" (or
        "auto:PAIR", where PAIR is the coarsest allowed: int8 if you leave it out and the model has frozen
        parameters), "adatopk:R", "uniform:R" (docs/reference/codecs.md). `farflung train --codec` overrides
        it. Activations and gradients between workers are coded, also activations of frozen layers that
        trained ones read; a lossy codec changes the numbers, the default and a lossless one do not.
    sum_codec
        The codec of what sums of gradients between replicas send from site to site, such as "int8", with
        error feedback: what it leaves out of one step's sum is added to the next one's. All replicas train
        on the sum as decoded, so they stay equal, but numbers change, unless it is lossless. "auto" lets the
        planner take int8 where steps get shorter. Codecs whose decoding depends on the machine (axes and
        dithered ones) are refused. `farflung train --sum-codec` overrides it.
    sync
        `farflung.DiLoCo(...)`: replicas train apart and merge after some steps, instead of adding up
        gradients in each one. It changes numbers, and sends far fewer bytes; `sum_codec` writes what merges
        send. None: all replicas take the same steps.
    max_loss_gap
        The largest relative increase of the exported model's held-out loss that "auto" accepts.
    validate_every
        Steps between evaluations. With `validation`, the first and the last step are always evaluated.
    validation_batches
        Microbatch-sized batches of one evaluation, spread evenly over `validation`. None: all of it, but for
        what is left over of the last batch. "auto": 8 to 64, as many as evaluations can read in 5 % of the
        time of the steps; where lines were measured and are too slow for these, fewer, unless `stop_early` or
        `keep_best` goes by them. If codecs are chosen during the run ("auto"), a job of fewer than 80 steps
        is evaluated only after the last one and on dense links, unless `validate_every` says otherwise.
    metrics
        What evaluations measure beside the loss, by name: `metric(outputs, batch)` gives the mean over a
        batch as a scalar tensor, or a sum and the count that divides it; `farflung.metrics` has some. They
        are captured into the graph like the loss, and a mean is weighted by counted targets as the loss is.
    stop_early, keep_best
        What evaluations decide: `EarlyStopping` ends the run once they find nothing better. With `KeepBest`,
        or with True, which goes by what `stop_early` does or else by the loss, the run's result is the
        weights of the best evaluation. Both need `validate_every`.
    precision
        "bfloat16" trains as under `torch.autocast`: matrix products and their results are bfloat16, while
        parameters, optimizer state and the loss stay float32.
    deterministic
        On GPUs, compute with repeatable bits and without TF32, which is slower. CPUs always do.
    compiled
        On GPUs, let torch's compiler fuse each segment's kernels, as `torch.compile` does: a step takes less
        time and memory, loading takes longer. Numbers differ in their last bits, and dropout draws others.
    weights
        Values for a model on the meta device: a safetensors file, or a folder with shards and their index, by
        path or URL. They are read one tensor at a time. Workers fetch what they can of a URL themselves,
        also for a model that has values.
    quantize
        "int8" or "nf4": workers hold frozen matrices as codes of 8 or 4 bits with a scale for each block
        of 64 or 32 values (`farflung.quantization`; QLoRA, arXiv 2305.14314), and dequantize one at a time
        where it is used. That are the matrices that linear layers (`nn.Linear`, `F.linear`, products with a
        parameter) and embeddings alone read. What an embedding reads, also if a head is tied to it, is int8
        with either. Norms, biases and whatever is trained stay as they are. It changes numbers: the run
        computes what one process with the dequantized matrices does, not what the model with its own values
        does. The run's result has the model's own values beside what was trained.
    collate
        Turns a list of items into a batch, a dict of tensors. By default tensors are stacked.
    names
        Names of the parts if items, or what `collate` returns, are tuples: the model's arguments.
    sampler
        Chooses and orders the items of each epoch; without it, all of them are shuffled (`data.SampleOrder`).
        Random ones draw from their attribute `generator`, as torch's do.
    num_workers
        Threads that read and collate items ahead, by microbatches. With more than one, data set and `collate`
        must be safe to call from several threads.
    sample
        Called with the trained model in evaluation mode after the run; the text it returns is printed.
    name
        The job's name in `farflung status`; the job file's name if None.
    keep_home
        Which data stays with home workers: "inputs" (what the model's layers read), "targets" (what only the
        loss and metrics read), or both. Only workers that `train --home`, or `Fleet.train(home=)`, names run
        the segments that read it, or hold copies of these; others see activations and gradients alone, which
        can still tell of the data (docs/explanation/security.md). Local fleets keep all at home anyway.
    home_noise
        With `keep_home`, home workers add Gaussian noise to each value and gradient that they send to others,
        in training and evaluations: its deviation is so many times the root mean square of each row (the last
        dimension), or of the whole message if that is more. It blurs
        what others can reconstruct of the data, and costs loss (docs/how-to/keep-data-at-home.md); it is no
        differential privacy. Each home worker draws from a secret of its process, so two runs differ, and so
        does a run after a home worker was lost. 0, the default, adds none.
    verify
        The share of all work, from 0 to 1, that an idle worker with the same kernels does again to check it.
        At 1 no result is handed out that was not checked (docs/how-to/check-results.md).

    Raises
    ------
    JobError
        A field has the wrong type or is out of range, or the data has too few items or unsuitable ones.
    """

    model: nn.Module
    data: Dataset | Iterable[Any] | DataLoader[Any]
    optimizer: Optimizer
    batch: int
    microbatches: int
    steps: int
    loss: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
    counted: str | Callable[[dict[str, Tensor]], Tensor | int] | None = None
    validation: Dataset | Iterable[Any] | DataLoader[Any] | None = None
    seed: int = 0
    clip: float | None = None
    clip_by: ClipBy = "global"
    codec: str = DENSE
    sum_codec: str = DENSE
    sync: DiLoCo | None = None
    max_loss_gap: float = MAX_LOSS_GAP
    validate_every: int | None = None
    validation_batches: int | Literal["auto"] | None = "auto"
    metrics: Mapping[str, Callable[[Any, dict[str, Tensor]], Any]] | None = None
    stop_early: EarlyStopping | None = None
    keep_best: bool | KeepBest = False
    precision: Precision = "float32"
    deterministic: bool = False
    compiled: bool = False
    weights: Path | str | None = None
    quantize: QuantizedFormat | None = None
    collate: Collate | None = None
    names: Sequence[str] | None = None
    sampler: Iterable[int] | None = None
    num_workers: int = 1
    sample: Callable[[Any], str] | None = None
    name: str | None = None
    keep_home: Sequence[DataKind] = ()
    home_noise: float = 0.0
    verify: float = 0.0

    def __post_init__(self) -> None:
        require_fields(self)
        require_even_batch(self)
        require_lengths(self)
        require_items(self, "data", self.items, self.batch)
        if self._sampler is not None:
            require_own_generator("data" if self._loader else "sampler", self._sampler, self.seed)
        if self.held_out is not None:
            require_items(self, "validation", self.held_out, self.microbatch_size)
        self.order()

    @property
    def microbatch_size(self) -> int:
        """Samples of one microbatch."""
        return self.batch // self.microbatches

    @property
    def validation_microbatches(self) -> int:
        """Microbatches of one evaluation: 0 without `validation`, and at most as many as that contains."""
        if self.held_out is None:
            return 0
        whole = min(len(self.held_out) // self.microbatch_size, MAXIMUM_MICROBATCHES)
        asked = self.asked_validation_batches
        return whole if asked is None else min(asked, whole)

    @property
    def asked_validation_batches(self) -> int | None:
        """Microbatches that an evaluation takes if there are as many, None for all of them."""
        return self._evaluations.microbatches

    @property
    def may_evaluate_less(self) -> bool:
        """Whether slow lines may leave out validation microbatches: nothing is decided by the losses."""
        is_open = self.held_out is not None and self.validation_batches == "auto"
        return is_open and self.stop_early is None and not self.keep_best

    @property
    def _evaluations(self) -> Evaluations:
        asked, tunes = self.validation_batches, is_auto(self.codec)
        return evaluations_of(asked, self.steps, self.microbatches, self.validate_every, tunes)

    @cached_property
    def items(self) -> Dataset | StreamItems:
        """The training items by number."""
        data: Any = self.data if self._loader is None else self._loader.dataset
        if not is_stream(data):
            return data
        if self.sampler is not None:
            raise JobError("data is a stream, which has its own order: leave Job(sampler=) out")
        return StreamItems("data", data, self._read_at_once * self.microbatch_size, least=self.batch)

    @cached_property
    def held_out(self) -> Dataset | None:
        """The validation items by number."""
        source: Any = self.validation.dataset if is_loader(self.validation) else self.validation  # type: ignore[union-attr]
        if is_stream(source):
            return self._held_out_of(source)
        if self.validation is None or not is_loader(self.validation):
            return self.validation  # type: ignore[return-value]
        parts = parts_of("validation", self.validation, self.validation.batch_size or 1)  # type: ignore[union-attr, arg-type]
        if not is_same_collate(parts.collate, self._collate):
            raise JobError("validation is a DataLoader with another collate_fn than data: give both the same")
        return sampled_items(parts, self.seed)

    def _held_out_of(self, stream: Any) -> Dataset:
        """The items that an evaluation needs of a stream, which stay in memory."""
        if (count := self.asked_validation_batches) is None:
            raise JobError("validation is a stream: give Job(validation_batches=), how many of its batches")
        return first_items("validation", stream, count * self.microbatch_size)

    @property
    def captured_metrics(self) -> dict[str, Callable[[Any, dict[str, Tensor]], Any]]:
        """The metrics that workers compute; others are functions of the validation loss."""
        metrics = self.metrics or {}
        return {name: metric for name, metric in metrics.items() if not isinstance(metric, Perplexity)}

    @property
    def readers(self) -> int:
        """Threads that read items."""
        return self.num_workers if self._loader is None else max(self.num_workers, self._loader.num_workers)

    @property
    def _read_at_once(self) -> int:
        """More microbatches than are read at one time, in whichever order."""
        return 2 * self.readers + 2 * self.microbatches + 8

    def order(self) -> SampleOrder | StreamOrder:
        """Which items each step has."""
        if isinstance(self.items, StreamItems):
            return StreamOrder(self.batch)
        return SampleOrder(len(self.items), self.batch, self.seed, self._sampler)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of microbatches, ascending, if `Pad` gives them several."""
        found = self._collate.lengths if isinstance(self._collate, Pad) else ()
        return found if len(found) > 1 else ()

    def collated(
        self, items: Sequence[Any], length: int | None = None, truncate: bool = False
    ) -> dict[str, Tensor]:
        """A batch of these items, see `data.collate`.

        If one of the job's `lengths` is given, it has that one; with `truncate`, longer items are cut.
        """
        made = self._collate
        if length is not None and isinstance(made, Pad):
            made = made.at(length, truncate)
        return collate(items, made, self.names)

    def fitting(self, length: int, count: int) -> list[int]:
        """Up to `count` of the first training items that are no longer than one of the job's `lengths`.

        Items that cannot be read are passed over.
        """
        pad, items = self._collate, self.items
        assert isinstance(pad, Pad)
        known = self.batch if isinstance(items, StreamItems) else min(len(items), SEARCHED_ITEMS)

        def fits(number: int) -> bool:
            try:
                return pad.holds(items[number], length)
            except Exception:
                return False

        return list(islice(filter(fits, range(known)), count))

    @property
    def has_own_collate(self) -> bool:
        """Whether the user's code makes batches."""
        return self._collate is not None

    @property
    def _sampler(self) -> Iterable[int] | None:
        return self.sampler if self._loader is None else self._loader.sampler

    @property
    def _collate(self) -> Collate | None:
        return self.collate if self._loader is None else self._loader.collate

    @cached_property
    def _loader(self) -> LoaderParts | None:
        if not is_loader(self.data):
            return None
        for name in ("collate", "sampler"):
            if getattr(self, name) is not None:
                raise JobError(f"data is a DataLoader, which has its own {name}: leave Job({name}=) out")
        return parts_of("data", self.data, self.batch)  # type: ignore[arg-type]

    @property
    def has_values(self) -> bool:
        """Whether the model's parameters and buffers are in memory rather than on the meta device."""
        return has_values(self.model)

    @property
    def is_steady(self) -> bool:
        """Whether it clips the norm of all gradients and warms up from at most a fifth of its rate."""
        is_clipped = self.clip is not None and self.clip_by == "global"  # by segment, nothing was measured
        return is_clipped and self.optimizer.schedule.ratio(0) <= _WARM_UP

    def training(self) -> Training:
        """The training settings, in the form that is sent to broker and workers."""
        is_evaluated = self.validation_microbatches > 0
        return Training(
            steps=self.steps,
            microbatches=self.microbatches,
            microbatch_size=self.microbatch_size,
            optimizer=msgspec.structs.replace(self.optimizer, diloco=self.sync),
            seed=self.seed,
            clip=self.clip,
            clip_by=self.clip_by,
            validate_every=self.validate_every,
            validation_microbatches=self.validation_microbatches,
            validate_twice=is_evaluated and self._evaluations.twice,
            validate_plain=is_evaluated and self._evaluations.plain,
            validate_first=not is_evaluated or self._evaluations.first,
            precision=self.precision,
            deterministic=self.deterministic,
            compiled=self.compiled,
            verify=float(self.verify),
            home_noise=float(self.home_noise),
            lengths=self.lengths,
        )
