"""What identifies a run, and in which fields two runs differ."""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from farflung.client.output.checkpoints.record import (
    CheckpointRecord,
    DataIdentity,
    ModelIdentity,
    RunIdentity,
    Versions,
)
from farflung.client.run.microbatches import read_batch
from farflung.data import spread_indices
from farflung.data.streams import StreamItems
from farflung.errors import CheckpointError, JobError
from farflung.opdag.graph import Graph
from farflung.plans.codec_pair import DENSE
from farflung.runtime.training import Training
from farflung.text import and_more

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.run_record import SubmittedJob

SAMPLED_ITEMS = 8
SAMPLED_TENSORS = 16
UNREADABLE = hashlib.sha256(b"an item that cannot be read").hexdigest()

MAY_CHANGE = frozenset(
    (
        "steps",
        "validate_every",
        "validation_microbatches",
        "validate_twice",
        "validate_plain",
        "validate_first",
        "sample_codecs",
        "copies",
        "monitors",
        "verify",
    )
)
"""Training settings that change nothing in the steps that a checkpoint holds, or in how they go on."""

CODECS = frozenset(("codecs", "codec_format"))
"""Settings of links. They may change when a run is resumed, with a warning: later steps have other bits."""


def identity_of(prepared: Prepared, training: Training) -> RunIdentity:
    """The identity of a job that is trained with these settings; reads items of its data, each twice."""
    digest = hashlib.sha256(prepared.program).hexdigest()
    base, quantize = prepared.base_sha256 or None, prepared.job.quantize or ""
    model = ModelIdentity(digest, _numbers(prepared.own_graph), base, quantize)
    return RunIdentity(model, training, data_identity(prepared.job))


def data_identity(job: Job) -> DataIdentity:
    """The number of training items, what orders them, digests of some, and whether these can be read again.

    A stream has no number (0), and its first items are read, which may be those of several epochs.

    The random states of Python, NumPy and PyTorch stay as they are. An item that cannot be read is known by
    that: it must not cost the checkpoints of the steps before it is due.
    """
    items = job.items
    length = 0 if isinstance(items, StreamItems) else len(items)
    indices = spread_indices(length, min(length, SAMPLED_ITEMS)) or list(range(SAMPLED_ITEMS))
    with _random_states_kept():
        digests = _digests(job, indices)
        if isinstance(items, StreamItems):
            items.forget()
        return DataIdentity(length, digests, digests == _digests(job, indices), job.order().kind)


def require_same_run(
    record: CheckpointRecord, current: RunIdentity, job: str = "another job"
) -> tuple[str, ...]:
    """Check that a checkpoint is of the run with this identity, which may have other `steps`.

    `job` is the job file of the checkpoint's run. Returns warnings: other codecs, steps that less was
    checked of than is to be, what could not be compared, or differs in a few sampled items only.

    Raises
    ------
    CheckpointError
        The checkpoint is of another model, data or training settings, or of a later step than the run has;
        the message names each field that differs, with both values.
    """
    found = differences(record, current)
    if found:
        raise CheckpointError(
            f"the checkpoint of step {record.step} is of another run (of {job}): {'; '.join(found)}."
            " Resume with the job as it was, or start a new run"
        )
    settings = (*_codec_warnings(record, current.training), *_verify_warnings(record, current.training))
    return (*settings, *_data_warnings(record.identity.data, current.data))


def differences(record: CheckpointRecord, current: RunIdentity) -> list[str]:
    """The fields in which the run of a checkpoint ("there") and the current one ("here") differ."""
    found = _differences(record.identity, record.versions, current, MAY_CHANGE | CODECS)
    if current.training.steps < record.step:
        found.append(f"steps: {record.step} are done there, {current.training.steps} are asked for here")
    return found


def require_same_job(submitted: SubmittedJob, current: RunIdentity, values: str | None) -> None:
    """Check that a process with this identity can take the place of a job's submitter.

    `values` is the digest of the values with which the model begins here, None if they do not matter because
    a checkpoint has them.

    Raises
    ------
    CheckpointError
        Model, data or any training setting differs; the message names each, with both values.
    """
    found = _differences(submitted.identity, submitted.versions, current, frozenset())
    if values not in (None, submitted.values):
        found.append("model: it begins with other values than there (call torch.manual_seed in the job file)")
    if found:
        raise CheckpointError(
            f"{submitted.job} still stands at the broker {submitted.broker}, and is another job:"
            f" {'; '.join(found)}. Resume with the job as it was. To change it, resume as it was and press"
            " Ctrl-C, which ends the job; the next resume may change it"
        )


def values_digest(state: Mapping[str, Tensor]) -> str:
    """A digest of some tensors of a model's state, spread evenly over their names in order."""
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    names = sorted(state)
    digest = hashlib.sha256()
    for name in (names[index] for index in spread_indices(len(names), min(len(names), SAMPLED_TENSORS))):
        tensor = outgoing(state[name]).cpu()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(memory(tensor))
    return digest.hexdigest()


def _differences(
    there: RunIdentity, versions: Versions, here: RunIdentity, may_change: frozenset[str]
) -> list[str]:
    found = list(_model_differences(there.model, here.model, versions))
    found += _setting_differences("", there.training, here.training, may_change)
    found += _data_differences(there.data, here.data)
    return found


def _model_differences(there: ModelIdentity, here: ModelIdentity, versions: Versions) -> Iterator[str]:
    if there.graph_sha256 == here.graph_sha256:
        old, new = there.base_sha256, here.base_sha256
        if old and new and old != new:  # earlier versions of farflung named none, and saved all weights
            yield f"model: frozen weights {old[:12]} there, {new[:12]} here"
        return
    if there.quantize != here.quantize:
        yield f"model: quantize {there.quantize or 'none'} there, {here.quantize or 'none'} here"
        return
    if there.numbers != here.numbers:
        yield f"model: parameters of {there.numbers:,} numbers there, {here.numbers:,} here"
        return
    own = Versions.own()
    versions_differ = f", captured with torch {versions.torch} there and {own.torch} here"
    yield (
        f"model: graph {there.graph_sha256[:12]} there, {here.graph_sha256[:12]} here"
        f"{versions_differ if versions.torch != own.torch else ''}"
    )


def _setting_differences(
    path: str, there: msgspec.Struct, here: msgspec.Struct, may_change: frozenset[str]
) -> Iterator[str]:
    if type(there) is not type(here):
        yield f"{path.rstrip(': ')}: {type(there).__name__} there, {type(here).__name__} here"
        return
    for field in there.__struct_fields__:
        old, new = getattr(there, field), getattr(here, field)
        if field in may_change or old == new:
            continue
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
            yield from _setting_differences(f"{path}{field}: ", old, new, may_change)
        else:
            yield f"{path}{field}{' ' if path else ': '}{_word(old)} there, {_word(new)} here"


def _codec_warnings(record: CheckpointRecord, here: Training) -> Iterator[str]:
    there = record.identity.training
    if there.codecs != here.codecs:
        yield (
            f"codecs: {_named(there.codecs)} there, {_named(here.codecs)} here; the run goes on with the"
            f" latter from step {record.step + 1}"
        )
    elif there.codecs and there.codec_format != here.codec_format:
        yield (
            f"codecs: format {there.codec_format} there, {here.codec_format} here; steps from"
            f" {record.step + 1} on may have other bits"
        )


def _verify_warnings(record: CheckpointRecord, here: Training) -> Iterator[str]:
    there = record.identity.training
    if there.verify < here.verify == 1:
        yield (
            f"verify: {there.verify:g} there, 1 here; what workers computed up to step {record.step} is not"
            " checked now"
        )


def _named(codecs: Sequence[str]) -> str:
    return and_more(codecs) or DENSE


def _word(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ", ".join(map(_word, value)) or "none"
    return "none" if value is None else str(value)


def _data_differences(there: DataIdentity, here: DataIdentity) -> Iterator[str]:
    if there.items != here.items:
        yield f"data: {there.items} items there, {here.items} here"
    elif None not in (there.order, here.order) and there.order != here.order:
        yield f"data: ordered by {there.order} there, by {here.order} here"
    elif (changed := _changed(there, here)) * 2 > len(there.digests):
        yield f"data: of {len(there.digests)} sampled items {changed} are not the same"


def _data_warnings(there: DataIdentity, here: DataIdentity) -> Iterator[str]:
    if not (there.is_repeatable and here.is_repeatable):
        yield "data: items differ when they are read twice, so they were not compared with the checkpoint's"
    elif changed := _changed(there, here):
        yield f"data: of {len(there.digests)} sampled items {changed} are not the same as in the checkpoint"


def _changed(there: DataIdentity, here: DataIdentity) -> int:
    """How many of the sampled items differ; 0 if they cannot be compared."""
    if not (there.is_repeatable and here.is_repeatable) or len(there.digests) != len(here.digests):
        return 0
    return sum(old != new for old, new in zip(there.digests, here.digests, strict=True))


@contextmanager
def _random_states_kept() -> Iterator[None]:
    import torch

    numpy = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)


def _numbers(graph: Graph) -> int:
    return sum(math.prod(graph.values[entry.value].shape_at(1)) for entry in graph.inputs_of("parameter"))


def _digests(job: Job, indices: Sequence[int]) -> list[str]:
    found = []
    for index in indices:
        try:
            found.append(_digest(read_batch(job.items, "data", [index], job)))
        except JobError:
            found.append(UNREADABLE)
    return found


def _digest(batch: Mapping[str, Tensor]) -> str:
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    digest = hashlib.sha256()
    for name in sorted(batch):
        tensor = outgoing(batch[name]).cpu()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(memory(tensor))
    return digest.hexdigest()
