"""Every format that has recorded bytes, by the name under which they are recorded.

The names are those of the files, not of the code: when a class or module moves, only an import changes here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from farflung.broker.core import facts
from farflung.broker.core.snapshots import Snapshot
from farflung.broker.planning import messages as planning_messages
from farflung.broker.security.tokens import KnownToken
from farflung.broker.survey.measurements import Measurement, read_row, row
from farflung.client.capture.report import CaptureReport, Refusal
from farflung.client.output.records import StepRow, Summary
from farflung.client.output.run_record import RunRecord
from farflung.lab.measure.calibration import Calibration
from farflung.lab.registry import Record as LabRecord
from farflung.lab.run.report import LabReport
from farflung.lab.switch import control
from farflung.lab.switch.process import Start, Started
from farflung.localhost.findings import Finding
from farflung.localhost.forkserver import ForkRequest, ServerMessage
from farflung.planner.advice.forecast import Expected, Forecast
from farflung.planner.codecs import ladder
from farflung.planner.codecs.tuner import Basis, tuning_basis
from farflung.plans import Plan, Topology, encode_topology
from farflung.plans.topology_file import decode_topology
from farflung.protocol import messages
from farflung.runtime.parity.steps import CheckReport
from farflung.transport.probing import messages as probing_messages
from farflung.transport.security import join_messages
from farflung.transport.security.identity import Record as IdentityRecord
from farflung.transport.wire.headers import DataHeader
from farflung.workload.profile import DeviceProfile

ROOM = Path(__file__).parent
VERSIONS = sorted((path for path in ROOM.glob("v*") if path.is_dir()), key=lambda path: int(path.name[1:]))
"""Folders of recorded files, the oldest first. A later one holds only what differs from those before."""

FILE = "formats.json"


class Format(NamedTuple):
    """How values of `kind` are written and read; `document` says that the bytes are JSON."""

    kind: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    document: bool = False


class Recorded(NamedTuple):
    """What a version holds of one format: every tag that can occur in it, and instances by their own tag."""

    tags: list[str]
    values: dict[str, list[bytes]]


def _packed(kind: Any) -> Format:
    return Format(kind, msgspec.msgpack.encode, lambda data: msgspec.msgpack.decode(data, type=kind))


def _document(kind: Any) -> Format:
    return Format(kind, msgspec.json.encode, lambda data: msgspec.json.decode(data, type=kind), True)


def _message(union: Any) -> Format:
    return Format(union, messages.encode, lambda data: messages.decode(data, union))


def _prefixed(union: Any) -> Format:
    """Lab control: four bytes of length come first."""
    return Format(union, control.encode, lambda data: msgspec.msgpack.decode(data[4:], type=union))


FORMATS: Mapping[str, Format] = {
    # The control messages, by direction.
    "from worker": _message(messages.FromWorker),
    "from submitter": _message(messages.FromSubmitter),
    "from peer": _message(messages.FromPeer),
    "from viewer": _message(messages.FromViewer),
    "to worker": _message(messages.ToWorker),
    "to submitter": _message(messages.ToSubmitter),
    "to viewer": _message(messages.ToViewer),
    # Below them.
    "stranger request": Format(join_messages.Request, join_messages.encode, join_messages.decode_request),
    "stranger answer": Format(join_messages.Answer, join_messages.encode, join_messages.decode_answer),
    "probe words": Format(probing_messages.Saying, probing_messages.encode, probing_messages.decode),
    "data header": _packed(DataHeader),
    # What the broker keeps, and asks its planner.
    "fact": Format(facts.AnyDecision, facts.encode, facts.decode),
    "log snapshot": _packed(Snapshot),
    "measurement": Format(Measurement, lambda one: row(one)[2], read_row),
    "planner question": _packed(planning_messages.Question),
    "planner answer": _packed(planning_messages.Searched | planning_messages.Answer),
    "steering": Format(
        Basis,
        lambda basis: tuning_basis(basis.plan, basis.topology, basis.conditions, basis.limits),
        lambda data: msgspec.msgpack.decode(data, type=Basis),
    ),
    # Between processes of one machine.
    "lab request": _prefixed(control.Request),
    "lab answer": _prefixed(control.Answer),
    "lab start": _packed(Start),
    "lab started": _document(Started),
    "nursery birth": _packed(ForkRequest),
    "nursery news": _packed(ServerMessage),
    # Files that people and scripts read.
    "plan.json": _document(Plan),
    "topology file": Format(Topology, encode_topology, decode_topology, True),
    "identity.json": _document(IdentityRecord),
    "lab registry record": _document(LabRecord),
    "lab.json": _document(LabReport),
    "metrics.jsonl": _document(StepRow),
    "summary.json": _document(Summary),
    "run.json": _document(RunRecord),
    "device profile": _document(DeviceProfile),
    "losses.json": Format(dict[str, ladder.Loss], ladder.written, ladder.read, True),
    # What commands print with --json.
    "check --json": _document(CheckReport),
    "capture --json": _document(CaptureReport),
    "capture --json, refused": _document(Refusal),
    "plan --json": _document(Forecast),
    "simulate --json": _document(Expected),
    "status --json": _document(messages.Status),
    "lab calibrate --json": _document(Calibration),
    "doctor --json, a finding": _document(Finding),
    "token list --json, a token": _document(KnownToken),
}


def recorded(version: Path) -> dict[str, Recorded]:
    """Everything that a version recorded, by format; documents are kept as text, the rest as hex."""
    found: dict[str, Recorded] = {}
    for name, entry in json.loads((version / FILE).read_text()).items():
        read = str.encode if FORMATS[name].document else bytes.fromhex
        values = {tag: [read(text) for text in texts] for tag, texts in entry["values"].items()}
        found[name] = Recorded(entry["tags"], values)
    return found


def newest() -> dict[str, tuple[str, Recorded]]:
    """For each format the newest version that recorded it."""
    found: dict[str, tuple[str, Recorded]] = {}
    for version in VERSIONS:
        found |= {name: (version.name, entry) for name, entry in recorded(version).items()}
    return found


def tag_of(kind: type) -> str:
    """By which name a struct of a union goes on the wire; "" where it has none."""
    config = getattr(kind, "__struct_config__", None)
    return "" if config is None or config.tag is None else str(config.tag)


def top_tags(kind: Any) -> list[str]:
    """The tags that a value of this format can have itself, sorted."""
    info = inspect.type_info(kind)
    types = info.types if isinstance(info, inspect.UnionType) else (info,)
    return sorted(tag_of(one.cls) if isinstance(one, inspect.StructType) else "" for one in types)


def all_tags(kind: Any) -> list[str]:
    """The tags of every struct that can occur anywhere in a value of this format, sorted."""
    return sorted({tag for cls in _structs(inspect.type_info(kind), set()) if (tag := tag_of(cls))})


def _structs(info: Any, seen: set[type]) -> Iterator[type]:
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        yield info.cls
    for part in parts(info):
        yield from _structs(part, seen)


def parts(info: Any) -> Iterator[Any]:
    """The types that a type is directly made of."""
    match info:
        case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
            yield from (field.type for field in info.fields)
        case inspect.UnionType():
            yield from info.types
        case inspect.TupleType():
            yield from info.item_types
        case inspect.DictType():
            yield from (info.key_type, info.value_type)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.CollectionType():
            yield info.item_type
        case inspect.Metadata():
            yield info.type
