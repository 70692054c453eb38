"""What identifies a run, and in which fields two runs differ."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
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
from farflung.errors import CheckpointError
from farflung.opdag.graph import Graph
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.api.job import Job
    from farflung.client.capture.prepared import Prepared

SAMPLED_ITEMS = 8

MAY_CHANGE = frozenset(
    ("steps", "validate_every", "validation_microbatches", "validate_twice", "sample_codecs")
)
"""Training settings that change nothing in the steps that a checkpoint holds, or in how they go on."""


def identity_of(prepared: Prepared, training: Training) -> RunIdentity:
    """The identity of a job that is trained with these settings; reads items of its data, each twice.

    Raises
    ------
    JobError
        An item cannot be read.
    """
    digest = hashlib.sha256(prepared.program).hexdigest()
    model = ModelIdentity(digest, _numbers(prepared.graph))
    return RunIdentity(model, training, data_identity(prepared.job))


def data_identity(job: Job) -> DataIdentity:
    """The number of training items, and a digest of some of them if they are the same when read again.

    Raises
    ------
    JobError
        An item cannot be read.
    """
    length = len(job.data)
    indices = spread_indices(length, min(length, SAMPLED_ITEMS))
    digest = _items_digest(job, indices)
    is_repeatable = digest == _items_digest(job, indices)
    return DataIdentity(length, len(indices), digest if is_repeatable else None)


def require_same_run(record: CheckpointRecord, current: RunIdentity) -> None:
    """Check that a checkpoint is of the run with this identity, which may have other `steps`.

    Raises
    ------
    CheckpointError
        The checkpoint is of another model, data or training settings, or of a later step than the run has;
        the message names each field that differs, with both values.
    """
    found = differences(record, current)
    if found:
        raise CheckpointError(
            f"the checkpoint of step {record.step} is of another run: {'; '.join(found)}. Resume with the job"
            " as it was, or start a new run"
        )


def differences(record: CheckpointRecord, current: RunIdentity) -> list[str]:
    """The fields in which the run of a checkpoint ("there") and the current one ("here") differ."""
    there = record.identity
    found = list(_model_differences(there.model, current.model, record.versions))
    found += _setting_differences("", there.training, current.training)
    found += _data_differences(there.data, current.data)
    if current.training.steps < record.step:
        found.append(f"steps: {record.step} are done there, {current.training.steps} are asked for here")
    return found


def _model_differences(there: ModelIdentity, here: ModelIdentity, versions: Versions) -> Iterator[str]:
    if there.graph_sha256 == here.graph_sha256:
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


def _setting_differences(path: str, there: msgspec.Struct, here: msgspec.Struct) -> Iterator[str]:
    if type(there) is not type(here):
        yield f"{path.rstrip(': ')}: {type(there).__name__} there, {type(here).__name__} here"
        return
    for field in there.__struct_fields__:
        old, new = getattr(there, field), getattr(here, field)
        if field in MAY_CHANGE or old == new:
            continue
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
            yield from _setting_differences(f"{path}{field}: ", old, new)
        else:
            yield f"{path}{field}{' ' if path else ': '}{_word(old)} there, {_word(new)} here"


def _word(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ", ".join(map(_word, value)) or "none"
    return "none" if value is None else str(value)


def _data_differences(there: DataIdentity, here: DataIdentity) -> Iterator[str]:
    if there.items != here.items:
        yield f"data: {there.items} items there, {here.items} here"
    elif there.is_repeatable != here.is_repeatable:
        old, new = ("alike" if one.is_repeatable else "unlike" for one in (there, here))
        yield f"data: items read twice are {old} there, {new} here"
    elif there.sampled == here.sampled and there.sha256 != here.sha256:
        yield f"data: of {there.sampled} sampled items some are not the same"


def _numbers(graph: Graph) -> int:
    return sum(math.prod(graph.values[entry.value].shape_at(1)) for entry in graph.inputs_of("parameter"))


def _items_digest(job: Job, indices: Sequence[int]) -> str:
    digest = hashlib.sha256()
    for index in indices:
        _add(digest, read_batch(job.data, "data", [index], job))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, batch: Mapping[str, Tensor]) -> None:
    from farflung.runtime.torch_backend.tensors import memory, outgoing

    for name in sorted(batch):
        tensor = outgoing(batch[name]).cpu()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(memory(tensor))
