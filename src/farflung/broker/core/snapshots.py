"""Log snapshots: the broker's durable state as bytes, so that a start needs only the facts after it.

The wire format is that of the state itself: a map for each worker and job, with those fields of `Worker` and
`Job` that a replay restores. So a new field is stored without a change here, and the rules are those of
facts: give a new field a default, and never rename one or change its type.
"""

from __future__ import annotations

import dataclasses
import logging
from types import GenericAlias
from typing import Any, get_type_hints

import msgspec

from farflung.broker.core.records import Job, State, Worker, durable
from farflung.errors import FarflungError

FORMAT = 1
"""Raise it when a snapshot changes in a way that defaults of new fields cannot carry."""

_OBSERVED = (
    "loaded",
    "group",
    "traffic",
    "words",
    "tuning",
    "unprotected",
    "needs",
    "logged",
    "standbys",
    "unfit_standbys",
    "replanning",
    "checks",
)
"""The fields of a job that `durable` empties: a snapshot holds none of them, nor what a worker holds.
How long a job waits for lost workers comes with each tick.
"""

_log = logging.getLogger("farflung.broker")


def _record(kind: type, left_out: tuple[str, ...] = ()) -> Any:
    """A struct with the fields of the dataclass `kind`. Unknown fields are refused: they would be lost."""
    hints = get_type_hints(kind, localns=dict.fromkeys(("TuningState",), object), include_extras=True)
    fields: list[Any] = []
    for one in dataclasses.fields(kind):
        if one.name in left_out:
            continue
        if one.default is not dataclasses.MISSING:
            fields.append((one.name, hints[one.name], one.default))
        elif one.default_factory is not dataclasses.MISSING:
            fields.append((one.name, hints[one.name], msgspec.field(default_factory=one.default_factory)))
        else:
            fields.append((one.name, hints[one.name]))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


_WorkerRecord = _record(Worker, ("held",))
_JobRecord = _record(Job, _OBSERVED)
_StateRecord = _record(State, ("workers", "jobs", "replace_seconds"))

Snapshot: Any = msgspec.defstruct(
    "Snapshot",
    [
        ("format", int),
        ("state", _StateRecord),
        ("workers", GenericAlias(list, (_WorkerRecord,))),
        ("jobs", GenericAlias(list, (_JobRecord,))),
    ],
    frozen=True,
    forbid_unknown_fields=True,
)
"""What is encoded: jobs in order of submission, workers in the order in which they first joined."""

_DECODER = msgspec.msgpack.Decoder(Snapshot)


class _Head(msgspec.Struct):
    """The part of a snapshot that any version can read."""

    format: int


def encode_snapshot(state: State) -> bytes | None:
    """The durable part of `state` as bytes; None, with a line in the log, if they would not give it back."""
    kept = durable(state)
    try:
        body = msgspec.msgpack.encode(_snapshot_of(kept))
        if decode_snapshot(body) == kept:
            return body
        trouble = "it reads back as another state"
    except (FarflungError, TypeError, ValueError) as error:
        trouble = str(error)
    _log.error("the state cannot be stored as a log snapshot (%s): the log grows instead", trouble)
    return None


def decode_snapshot(body: bytes) -> State:
    """The state in a snapshot.

    Raises
    ------
    FarflungError
        Another version wrote it.
    """
    try:
        head = msgspec.msgpack.decode(body, type=_Head)
        if head.format != FORMAT:
            raise ValueError(f"format {head.format}, this version reads {FORMAT}")
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise FarflungError(
            f"the broker's log begins with a snapshot that this version cannot read ({error}): "
            "start the version that wrote it, or a new folder"
        ) from None
    return State(
        workers={one.worker: Worker(**_fields(one)) for one in found.workers},
        jobs={one.job: Job(**_fields(one)) for one in found.jobs},
        **_fields(found.state),
    )


def _snapshot_of(state: State) -> Any:
    return Snapshot(
        FORMAT,
        _filled(_StateRecord, state),
        [_filled(_WorkerRecord, worker) for worker in state.workers.values()],
        [_filled(_JobRecord, job) for job in state.jobs.values()],
    )


def _filled(record: Any, value: object) -> Any:
    return record(**{name: getattr(value, name) for name in record.__struct_fields__})


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
