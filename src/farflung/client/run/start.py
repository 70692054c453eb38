"""The state with which an attempt begins: the model's own, or that of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from farflung.client.capture.prepared import Prepared
from farflung.client.output.checkpoints.contents import Checkpoint
from farflung.client.output.checkpoints.record import CheckpointRecord
from farflung.client.run.state_collector import with_slots
from farflung.errors import CheckpointError
from farflung.opdag.analysis import changed_by_training
from farflung.opdag.form import Form
from farflung.plans import Plan
from farflung.runtime.monitoring import Monitored
from farflung.runtime.state import NO_CODERS, StateKey
from farflung.runtime.training import Training

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Start:
    """Where an attempt begins: at `unit`, after `step` steps, with this `state`.

    `state` has every parameter and buffer of the graph and, after the first step, the optimizer slots of each
    trained parameter. `coders` is the coders' state by the first segment of each worker, for plans with the
    cut whose digest is `cut`; on another cut, coders have learned nothing. `monitored` is what the job's
    monitors have found; empty: nothing.
    """

    training: Training
    state: Mapping[StateKey, Tensor]
    unit: int = 0
    step: int = 0
    coders: Mapping[int, bytes] = field(default_factory=dict)
    cut: str = ""
    monitored: tuple[Monitored, ...] = ()

    @classmethod
    def fresh(cls, prepared: Prepared, training: Training) -> Start:
        """The model's own parameters and buffers."""
        return cls(training, StateByKey(prepared.state))

    @classmethod
    def of(
        cls, prepared: Prepared, training: Training, checkpoint: Checkpoint, unit: int | None = None
    ) -> Start:
        """The state of a checkpoint of the same run; see `require_same_run`.

        The attempt begins at `unit`, by default at the first training unit after the checkpoint's step, or at
        the evaluation of its weights if monitors go by that and it has not been made.

        Raises
        ------
        CheckpointError
            The run is done, or the checkpoint lacks a tensor or has one of another type or shape.
        """
        record = checkpoint.record
        evaluated = record.evaluated or not training.monitors
        first = training.units().after(record.step, evaluated, record.merged) if unit is None else unit
        if first is None:
            raise CheckpointError(
                f"nothing is left to do: {record.step} of {training.steps} steps are done; ask for more with"
                " --steps"
            )
        tensors = checkpoint.state
        slots = {
            StateKey(name, slot): tensor
            for name, of_one in checkpoint.optimizer.items()
            for slot, tensor in of_one.items()
        }
        _require_forms(prepared, training, {**slots, **{StateKey(name): t for name, t in tensors.items()}})
        named = {name: tensors.get(name) for name in prepared.state}
        own = {name: tensor for name, tensor in named.items() if tensor is not None}
        coders = {int(at): state for at, state in checkpoint.coders.items() if at.isdecimal()}
        before = record.identity.training
        if (before.codecs, before.codec_format) != (training.codecs, training.codec_format):
            coders = {}
        state = StateByKey(_Over(own, prepared.state), slots)
        return cls(
            training, state, first, record.step, coders, record.cut_sha256, monitored(record, training)
        )

    def coders_of(self, plan: Plan, segment: int) -> bytes:
        """The state for the coders of the worker whose first segment is `segment`."""
        return self.coders.get(segment, NO_CODERS) if self.cut == cut_digest(plan) else NO_CODERS

    def is_cut_otherwise(self, plan: Plan) -> bool:
        """Whether `plan` cuts the model otherwise than the attempt that made this state."""
        return bool(self.cut) and self.cut != cut_digest(plan)


class Earlier(NamedTuple):
    """The `state` of some step before the end, which `words` name, such as "in the checkpoint of step 40"."""

    words: str
    state: Mapping[StateKey, Tensor]


def monitored(record: CheckpointRecord, training: Training) -> tuple[Monitored, ...]:
    """What the monitors of a job had found; one that goes by something else now has found nothing."""
    before = {
        monitor.keeps: (monitor, found)
        for monitor, found in zip(record.identity.training.monitors, record.monitored, strict=False)
    }
    known = [(monitor, before.get(monitor.keeps)) for monitor in training.monitors]
    return tuple(one[1] if one and one[0].compares_as(monitor) else Monitored() for monitor, one in known)


def require_going_on(record: CheckpointRecord, training: Training) -> None:
    """Raise CheckpointError if the run of a checkpoint has stopped early."""
    for monitor, found in zip(training.monitors, monitored(record, training), strict=True):
        if found.is_over(monitor):
            raise CheckpointError(
                f"nothing is left to do: the run {found.why_over(monitor)}; to train on, give EarlyStopping"
                " more patience"
            )


def first_segments(plan: Plan) -> list[int]:
    """The first segment of each worker."""
    return [min(plan.segments_of(worker)) for worker in plan.workers()]


def cut_digest(plan: Plan) -> str:
    """A digest of what the coders' state depends on: the edges, and which segments share a worker."""
    shared = [min(plan.segments_of(worker)) for worker in plan.seats().values()]
    edges = [(edge.source, edge.target, edge.value, edge.bytes) for edge in plan.edges]
    return hashlib.sha256(msgspec.msgpack.encode((shared, edges))).hexdigest()


def _require_forms(prepared: Prepared, training: Training, found: Mapping[StateKey, Tensor]) -> None:
    """Check a checkpoint's tensors: what training changes must be there, and all must fit the graph."""
    graph, batch = prepared.graph, training.microbatch_size
    entries = [entry for entry in graph.inputs if entry.kind in ("parameter", "buffer")]
    forms = {entry.name: Form.of(graph.values[entry.value], batch) for entry in entries}
    trained = [entry.name for entry in entries if entry.trainable]
    changed = changed_by_training(graph)
    for key, form in with_slots(forms, trained, training.optimizer).items():
        tensor = found.get(key)
        if tensor is None and (key.slot or key.name in changed):
            raise CheckpointError(f"the checkpoint lacks {key}: it is damaged or foreign")
        if tensor is None:
            continue
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        if (dtype, shape) != form:
            raise CheckpointError(
                f"{key} of the checkpoint is {dtype} of shape {shape}, expected {form.dtype} of shape"
                f" {form.shape}: it is damaged or foreign"
            )


class StateByKey(Mapping[StateKey, "Tensor"]):
    """Parameters and buffers by their keys, each read on access, and optimizer slots."""

    def __init__(self, state: Mapping[str, Tensor], slots: Mapping[StateKey, Tensor] | None = None) -> None:
        self._state = state
        self._slots = slots or {}

    def __getitem__(self, key: StateKey) -> Tensor:
        return self._slots[key] if key.slot else self._state[key.name]

    def __iter__(self) -> Iterator[StateKey]:
        yield from map(StateKey, self._state)
        yield from self._slots

    def __len__(self) -> int:
        return len(self._state) + len(self._slots)


class _Over(Mapping[str, "Tensor"]):
    """Tensors of the first mapping, and those of the second that it lacks, each read on access."""

    def __init__(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        self._first, self._second = first, second

    def __getitem__(self, name: str) -> Tensor:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._second)

    def __len__(self) -> int:
        return len(self._second)
