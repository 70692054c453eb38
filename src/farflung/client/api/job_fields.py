"""What the fields of a `Job` may be, and that its data make batches."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from farflung.client.api.monitors import require_monitors
from farflung.data.loaders import require_numbered
from farflung.data.streams import StreamItems
from farflung.errors import CodecError, JobError
from farflung.opdag.graph import MOST_BUCKETS, MOST_METRICS, Precision
from farflung.opdag.raw_data import DATA_KINDS
from farflung.plans.codec_pair import DENSE
from farflung.plans.codec_policy import policy_of
from farflung.plans.phases import codecs_in
from farflung.plans.wishes import AUTO
from farflung.quantization import FORMATS
from farflung.runtime.optimizers.declared import Optimizer, is_optimizer, unmatched_pattern
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.runtime.optimizers.of_torch import declared_instead
from farflung.runtime.training import MOST_NOISE, ClipBy
from farflung.text import and_more, raised

if TYPE_CHECKING:
    from torch import nn

    from farflung.client.api.job import Dataset, Job

MAXIMUM_COUNT = 10**9
MAXIMUM_MICROBATCHES = 10**6
MAXIMUM_SEED = 2**63 - 1
MAXIMUM_READERS = 256


def require_fields(job: Job) -> None:
    """Raise JobError, which names the field, if one has the wrong type or is out of range."""
    _require_module(job.model)
    _require_optimizer(job.optimizer, job.model)
    for name in ("batch", "steps"):
        _require_whole(name, getattr(job, name), 1, MAXIMUM_COUNT)
    _require_whole("microbatches", job.microbatches, 1, MAXIMUM_MICROBATCHES)
    if job.validation_batches not in (None, "auto"):
        _require_whole("validation_batches", job.validation_batches, 1, MAXIMUM_MICROBATCHES)
    if job.validate_every is not None:
        _require_whole("validate_every", job.validate_every, 1, MAXIMUM_COUNT)
    _require_whole("seed", job.seed, 0, MAXIMUM_SEED)
    _require_clip(job.clip)
    _require_choice("clip_by", job.clip_by, get_args(ClipBy))
    if job.clip is None and job.clip_by != "global":
        raise JobError(f"clip_by={job.clip_by!r} needs a bound: give Job(clip=), such as 1.0")
    _require_codec(job.codec)
    _require_sum_codec(job.sum_codec)
    _require_sync(job.sync, job.steps, job.optimizer)
    _require_loss_gap(job.max_loss_gap)
    if not isinstance(job.counted, str):
        _require_callable("counted", job.counted)
    for name in ("loss", "collate", "sample"):
        _require_callable(name, getattr(job, name))
    _require_loss(job.loss)
    _require_name(job.name)
    _require_flags(job)
    _require_choice("precision", job.precision, get_args(Precision))
    _require_weights(job.weights, job.model)
    _require_choice("quantize", job.quantize, (*FORMATS, None))
    _require_whole("num_workers", job.num_workers, 1, MAXIMUM_READERS)
    _require_names(job.names)
    _require_kinds(job.keep_home)
    _require_verify(job.verify)
    _require_home_noise(job)
    _require_metrics(job.metrics, job.validation is not None)
    require_monitors(job)


def require_lengths(job: Job) -> None:
    """Raise JobError if a job with batches of several lengths asks for what needs one length."""
    if len(job.lengths) > MOST_BUCKETS:
        raise JobError(f"a job has at most {MOST_BUCKETS} lengths, Pad has {len(job.lengths)}: drop some")
    if job.lengths and job.compiled:
        raise JobError("a compiled job has batches of one length: give Pad one, or leave compiled out")
    if job.lengths and job.codec != DENSE:
        raise JobError(f"codec={job.codec!r} needs batches of one length: give Pad one, or leave codec out")


def require_even_batch(job: Job) -> None:
    """Raise JobError, which says a batch that fits, if microbatches cannot be of equal size."""
    if job.batch % job.microbatches:
        below = job.batch - job.batch % job.microbatches
        nearest = f"{below} or {below + job.microbatches}" if below else str(job.microbatches)
        raise JobError(
            f"batch must be divisible by microbatches, found batch={job.batch} and"
            f" microbatches={job.microbatches}: try batch={nearest}"
        )


def require_items(job: Job, name: str, data: Dataset | StreamItems, least: int) -> None:
    """Raise JobError if data has fewer items than one batch needs, or the first one makes no batch."""
    if not isinstance(data, StreamItems):
        require_numbered(name, data, kind_name(data))
        if len(data) < least:
            raise JobError(f"{name} has {len(data)} items, one batch needs {least}")
    try:
        first = data[0]
    except JobError:
        raise
    except Exception as error:
        raise JobError(raised(f"{name}[0]", error)) from error
    try:
        job.collated([first])
    except JobError as error:
        raise JobError(f"{name} is unfit: {error}") from None


def kind_name(value: object) -> str:
    """The name of a value's type, with the module that it is from."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _require_module(model: object) -> None:
    from torch import nn

    if isinstance(model, type) and issubclass(model, nn.Module):
        raise JobError(f"model must be a module, found the class {model.__name__}: call it")
    if not isinstance(model, nn.Module):
        raise JobError(f"model must be a torch.nn.Module, found {kind_name(model)}")


def has_values(model: nn.Module) -> bool:
    """Whether a model's parameters and buffers are in memory rather than on the meta device."""
    return not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def _require_weights(weights: object, model: nn.Module) -> None:
    if weights is None:
        return
    if not isinstance(weights, str | Path):
        raise JobError(
            f"weights must be the path or URL of a safetensors file or folder, found {kind_name(weights)}"
        )
    if has_values(model) and "://" not in str(weights):
        raise JobError(
            "weights are for a model on the meta device, this one has its own: load them into it, or give the"
            " URL from which workers can fetch them, too"
        )


def _require_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not is_optimizer(optimizer):
        names = {id(one): name for name, one in model.named_parameters() if one.requires_grad}
        if (declared := declared_instead(optimizer, names)) is not None:
            raise JobError(
                f"optimizer is a torch.optim.Optimizer ({type(optimizer).__name__}) over parameters of this"
                f" process, and each worker builds its own: write optimizer={declared}"
            )
        raise JobError(
            "optimizer must be farflung.AdamW(...), SGD, Lion, Adafactor or Muon, found"
            f" {kind_name(optimizer)}: each worker builds its own from the numbers"
        )
    named = model.named_parameters(remove_duplicate=False)
    require_patterns(optimizer, [name for name, parameter in named if parameter.requires_grad])


def require_patterns(optimizer: Optimizer, names: Sequence[str]) -> None:
    """Raise JobError if a pattern of the optimizer fits none of the trained parameters `names`."""
    if (pattern := unmatched_pattern(optimizer, names)) is not None:
        raise JobError(
            f"the optimizer's pattern {pattern!r} fits no trained parameter; there are {and_more(names, 4)}"
        )


def _require_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise JobError(f"{name} must be a whole number from {least} to {most}, found {value!r}")


def _require_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= 64):
        raise JobError(f"name must be a text of 1 to 64 characters, found {name!r}")


def _require_flags(job: Job) -> None:
    for name in ("deterministic", "compiled"):
        if not isinstance(getattr(job, name), bool):
            raise JobError(f"{name} must be True or False, found {getattr(job, name)!r}")
    if job.deterministic and job.compiled:
        raise JobError("a deterministic job can't be compiled: fused kernels have other bits; drop one")


def _require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise JobError(f"{name} must be {' or '.join(map(repr, choices))}, found {value!r}")


def _require_clip(clip: object) -> None:
    if clip is None:
        return
    if isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 < clip < math.inf:
        raise JobError(f"clip must be a positive number or None, found {clip!r}")


def _require_loss_gap(gap: object) -> None:
    if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap <= 1:
        raise JobError(f"max_loss_gap must be between 0 and 1 (0.01 is one percent), found {gap!r}")


def _require_sum_codec(codec: object) -> None:
    from farflung.codec.catalogue import sum_recipe

    if not isinstance(codec, str):
        raise JobError(f"sum_codec must be a text such as 'int8', found {kind_name(codec)}")
    try:
        if codec != AUTO:
            sum_recipe(codec)
    except CodecError as error:
        raise JobError(f"sum_codec {codec[:64]!r}: {error}") from None


def _require_sync(sync: object, steps: int, optimizer: Optimizer) -> None:
    if sync is None:
        return
    if not isinstance(sync, DiLoCo):
        raise JobError(f"sync must be farflung.DiLoCo(inner_steps=...) or None, found {sync!r:.60}")
    if optimizer.ema is not None:
        raise JobError("sync: moving averages of replicas that train apart are not merged: leave ema out")
    if sync.warmup >= steps:
        raise JobError(
            f"sync: {sync.warmup} steps of warm-up leave none of {steps} in which replicas train apart"
        )


def _require_codec(codec: object) -> None:
    from farflung.codec.catalogue import recipe  # with numpy, which a job file has loaded anyway

    if not isinstance(codec, str):
        raise JobError(f"codec must be a text such as 'int8/int4-stochastic', found {kind_name(codec)}")
    try:
        for name in () if policy_of(codec) else codecs_in(codec):
            recipe(name)
    except CodecError as error:
        raise JobError(f"codec {codec[:130]!r}: {error}") from None


def _require_names(names: object) -> None:
    if names is None:
        return
    parts = [] if isinstance(names, str) or not isinstance(names, Sequence) else list(names)
    if not parts or not all(isinstance(name, str) for name in parts) or len({*parts}) != len(parts):
        raise JobError(f"names must be different names, one for each part of an item, found {names!r}")


def _require_kinds(kinds: object) -> None:
    parts = [None] if isinstance(kinds, str) or not isinstance(kinds, Sequence) else list(kinds)
    if any(part not in DATA_KINDS for part in parts) or len({*parts}) < len(parts):
        raise JobError(f'keep_home must be ["inputs"], ["targets"] or ["inputs", "targets"], found {kinds!r}')


def _require_verify(share: object) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise JobError(f"verify must be between 0 (check nothing) and 1 (check all), found {share!r}")


def _require_home_noise(job: Job) -> None:
    noise = job.home_noise
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise <= MOST_NOISE:
        raise JobError(f"home_noise must be between 0 (none) and {MOST_NOISE:g}, found {noise!r}")
    if noise and not job.keep_home:
        raise JobError(
            "home_noise is added to what leaves home, and this job keeps nothing there: set"
            ' Job(keep_home=["inputs", "targets"]), or leave home_noise out'
        )
    if noise and job.verify:
        raise JobError(
            "a job with home_noise cannot be checked, as no other worker can draw the noise again: leave out"
            " verify or home_noise"
        )


def _require_metrics(metrics: object, is_evaluated: bool) -> None:
    if metrics is None:
        return
    if not isinstance(metrics, Mapping) or not 0 < len(metrics) <= MOST_METRICS:
        raise JobError(
            f"metrics must be a dict of 1 to {MOST_METRICS} functions by name, found {kind_name(metrics)}"
        )
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name == "loss":
            raise JobError(f"a metric's name must be a word other than 'loss', found {name!r}")
        if not callable(metric):
            raise JobError(f"metrics[{name!r}] must be callable, found {kind_name(metric)}")
    if not is_evaluated:
        raise JobError("metrics are measured on validation items: give Job(validation=)")


def _require_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise JobError(f"{name} must be callable or None, found {kind_name(value)}")


def _require_loss(loss: Callable[..., object] | None) -> None:
    """Check, without calling it, that `loss` accepts two arguments."""
    if loss is None:
        return
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # builtins may have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise JobError(
            "loss must take (outputs, batch), what the model returned and a dict of tensors, found"
            f" parameters {signature}"
        ) from None
