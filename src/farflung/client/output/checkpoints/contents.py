"""What a checkpoint holds: `Contents` become files in a folder, and come back as a `Checkpoint`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from farflung.client.output.adapter import Adapter, TrainedAdapter, merged, read_adapter, write_adapter
from farflung.client.output.checkpoints.record import (
    ADAPTER,
    BUFFERS,
    CODERS,
    MODEL,
    OPTIMIZER,
    CheckpointRecord,
    StoredFile,
)
from farflung.client.output.tensor_file import read_tensors, write_tensors
from farflung.client.output.weights import named_weights
from farflung.errors import CheckpointError
from farflung.files import sync

if TYPE_CHECKING:
    from torch import Tensor, nn

Slots = Mapping[str, Mapping[str, "Tensor"]]
"""An optimizer's state: parameter name -> slot -> tensor. Slots are named as in `torch.optim`'s state dict:
`exp_avg`, `exp_avg_sq` (shaped as the parameter) and `step` (int64, no dimensions) of AdamW,
`momentum_buffer` of SGD. A parameter without state, such as one that has had no momentum yet, is absent."""


@dataclass(frozen=True)
class Contents:
    """What to save. No tensor is copied if it is contiguous and on the CPU.

    Parameters
    ----------
    module
        The job's module: its state dict gives the names, and the values of what was not trained.
    state
        Trained parameters and buffers by the graph's names, buffers that the state dict lacks included.
    ties
        Further names of a tensor -> its name, as the graph says.
    optimizer
        State of the optimizer.
    coders
        State of the links' coders, opaque here.
    whole
        Whether to save the tensors of the module that `state` has not, too.
    adapter
        The adapter that `state` trains, to be saved as PEFT's files besides; None if there is none.
    base_sha256
        The digest of the weights that the adapter is for.
    """

    module: nn.Module
    state: Mapping[str, Tensor]
    ties: Mapping[str, str]
    optimizer: Slots
    coders: Mapping[str, bytes] = field(default_factory=dict)
    whole: bool = True
    adapter: Adapter | None = None
    base_sha256: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint, whose digests have been verified.

    `weights` has the module's state dict, tied tensors under each of their names; if the model has frozen
    parameters, only what a step changes. `buffers` has those that a state dict lacks. `optimizer` has the
    slots that `Slots` describes, `coders` the state of the coders. Tensors are mapped from the files, and
    stay valid when those are removed. `skipped` says of each later checkpoint why it was not loaded.

    If the run trains an adapter, `adapter` has its tensors by PEFT's names and `adapter_config` its
    `adapter_config.json`.
    """

    record: CheckpointRecord
    weights: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    optimizer: Slots
    coders: Mapping[str, bytes]
    skipped: tuple[str, ...] = ()
    adapter: Mapping[str, Tensor] = field(default_factory=dict)
    adapter_config: bytes = b""

    @property
    def state(self) -> dict[str, Tensor]:
        """All parameters and buffers by each of their names."""
        return {**self.weights, **self.buffers}


def write_contents(folder: Path, contents: Contents, step: int) -> dict[str, StoredFile]:
    """Write the files of a checkpoint, except its record, into an empty folder; all are on disk then.

    Raises
    ------
    OSError
        The disk refuses a write.
    """
    module, state, ties = contents.module, contents.state, contents.ties
    write_tensors(folder / MODEL, *named_weights(module, state, ties, step, contents.whole))
    if contents.adapter is not None:
        weights = merged(module, state, ties)
        write_adapter(folder, TrainedAdapter(contents.adapter, weights, step, contents.base_sha256))
    saved = module.state_dict(keep_vars=True)
    if others := {name: tensor for name, tensor in state.items() if name not in saved}:
        write_tensors(folder / BUFFERS, others, {})
    if slots := dict(_keyed(contents.optimizer)):
        write_tensors(folder / OPTIMIZER, slots, {})
    if contents.coders:
        (folder / CODERS).write_bytes(msgspec.msgpack.encode(dict(contents.coders)))
        sync(folder / CODERS)
    return {path.name: stored_file(path) for path in sorted(folder.iterdir())}


def read_contents(folder: Path, record: CheckpointRecord, skipped: tuple[str, ...] = ()) -> Checkpoint:
    """Open the files of a checkpoint.

    Raises
    ------
    CheckpointError
        A file is not what its name says.
    """
    weights, _ = read_tensors(folder / MODEL)
    buffers = read_tensors(folder / BUFFERS)[0] if BUFFERS in record.files else {}
    slots = _read_slots(folder / OPTIMIZER) if OPTIMIZER in record.files else {}
    coders = _read_coders(folder / CODERS) if CODERS in record.files else {}
    adapter, config = read_adapter(folder) if record.files.keys() >= set(ADAPTER) else ({}, b"")
    return Checkpoint(record, weights, buffers, slots, coders, skipped, adapter, config)


def stored_file(path: Path) -> StoredFile:
    """Size and digest of a file."""
    with path.open("rb") as file:
        return StoredFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _keyed(slots: Slots) -> Iterator[tuple[str, Tensor]]:
    """The key of each slot: `SLOT:NAME`. A slot's name has no colon, a parameter's may."""
    for name, state in slots.items():
        for slot, tensor in state.items():
            yield f"{slot}:{name}", tensor


def _read_slots(path: Path) -> dict[str, dict[str, Tensor]]:
    slots: dict[str, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(path)[0].items():
        slot, colon, name = key.partition(":")
        if not colon:
            raise CheckpointError(f"{path} has the key {key[:80]!r}, expected SLOT:NAME: it is foreign")
        slots.setdefault(name, {})[slot] = tensor
    return slots


def _read_coders(path: Path) -> dict[str, bytes]:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=dict[str, bytes])
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
