"""Instances of any struct with every field filled: no field has its default, and no two numbers are alike.

Only the recorder uses this. What is recorded stays readable without it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect
from tests.golden.formats import parts

from farflung.broker.core.facts import JobLoading
from farflung.lab.spec import LabSpec, LinkSettings, Node
from farflung.planner.codecs.limits import Limits
from farflung.plans import (
    FEEDER,
    CodecWishes,
    Edge,
    LaterCodecs,
    LinkCodec,
    LinkWish,
    Pipeline,
    Placement,
    Plan,
    Sum,
    Topology,
    WorkerSpec,
)
from farflung.protocol.messages import Submit
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Lion, Muon
from farflung.runtime.optimizers.diloco import Nesterov
from farflung.runtime.optimizers.schedules import (
    WSD,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    StepLR,
    WarmupCosine,
)
from farflung.simulator import Conditions

MOST_VARIANTS = 12

_TEXTS = {
    "^[0-9a-f]{16}$": "00112233445566{:02x}",
    "^[0-9a-f]{64}$": f"{'00' * 31}{{:02x}}",
    "^[A-Za-z0-9_.]{1,128}$": "aten.golden_{}.default",
    "^[a-z0-9.:+-]+$": "topk{}-int8",
    "^[a-z0-9.:+-]+(/[a-z0-9.:+-]+)?$": "int8/eden{}",
}


class Maker:
    """Makes instances; `variant` chooses among the types of a union and the values of a literal."""

    def __init__(self, variant: int = 0) -> None:
        self._variant = variant
        self._count = 0
        self._special: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
            Submit: lambda given: given | {"workers": 2},
            WorkerSpec: self._worker,
            Topology: self._topology,
            Plan: self._plan,
            JobLoading: lambda given: (
                given | {"owned": [["one", "two"], ["three"]] * 2, "trained": [[3, 4], [5]] * 2}
            ),
            Placement: lambda given: given | {"workers": ["w-1"]},
            Sum: lambda given: given | {"groups": [[1, 2], [3]], "heads": [2, 3], "owner": 3},
            CodecWishes: self._wishes,
            AdamW: lambda given: given | {"betas": (0.875, 0.9375), "ema": 0.75},
            SGD: self._sgd,
            Nesterov: lambda given: given | {"momentum": 0.875},
            Lion: lambda given: given | {"betas": (0.875, 0.9375), "ema": 0.75},
            Adafactor: lambda given: given | {"beta2_decay": -0.5, "ema": 0.75},
            Muon: lambda given: (
                given | {"momentum": 0.875, "ns_coefficients": (1.5, -0.5, 0.25), "ns_steps": 3, "ema": 0.75}
            ),
            WarmupCosine: self._cosine,
            WSD: lambda given: given | {"minimum_ratio": 0.125},
            LinearLR: lambda given: given | {"start_factor": 0.25, "end_factor": 0.5},
            CosineAnnealingLR: lambda given: given | {"minimum_ratio": 0.125},
            StepLR: lambda given: given | {"gamma": 0.25},
            MultiStepLR: lambda given: given | {"gamma": 0.25},
            ExponentialLR: lambda given: given | {"gamma": 0.25},
            OneCycleLR: lambda given: given | {"pct_start": 0.25},
            Conditions: lambda given: given | {"efficiency": 0.625, "payload_share": 0.75},
            Limits: lambda given: given | {"max_loss_gap": 0.03125, "roughest": "axes30/axes100-dithered"},
            Node: lambda given: given | {"name": f"node-{self._next()}", "shares_line_with": None},
            LinkSettings: lambda given: given | {"loss": 0.25},
            LabSpec: self._lab,
        }

    def of(self, kind: Any) -> Any:
        """An instance of a struct, a dataclass, or of whatever a type annotation says."""
        return self._make(inspect.type_info(kind), self._variant)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _make(self, info: Any, variant: int) -> Any:
        match info:
            case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
                return self._fields(info, variant)
            case inspect.FrozenSetType():
                return frozenset({self._make(info.item_type, variant)})
            case inspect.UnionType():
                chosen = [part for part in info.types if not _is_nothing(part)]
                return self._make(chosen[variant % len(chosen)], variant)
            case inspect.LiteralType():
                return info.values[variant % len(info.values)]
            case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
                made = [self._make(info.item_type, variant + at) for at in range(2)]
                return made if isinstance(info, inspect.ListType) else tuple(made)
            case inspect.TupleType():
                return tuple(self._make(part, variant) for part in info.item_types)
            case inspect.DictType():
                keys = [self._make(info.key_type, variant) for _ in range(2)]
                return {key: self._make(info.value_type, variant + at) for at, key in enumerate(keys)}
            case inspect.Metadata():
                return self._make(info.type, variant)
            case inspect.AnyType():
                return {"any": self._next()}
        return self._plain(info)

    def _plain(self, info: Any) -> Any:
        number = self._next()
        match info:
            case inspect.BoolType():
                return True
            case inspect.IntType():
                return int(_bounded(info, number))
            case inspect.FloatType():
                return float(_bounded(info, number + 0.25))
            case inspect.StrType():
                text = _TEXTS.get(info.pattern or "", "int8@0.5,eden{}" if info.pattern else "text {}")
                text = text.format(number % 3 + 2 if "eden" in text else number)
                return text[: info.max_length]
            case inspect.BytesType():
                length = max(info.min_length or 0, min(info.max_length or 24, 24))
                return bytes((number + at) % 256 for at in range(length))
        raise TypeError(f"no sample of {info}")

    def _fields(self, info: Any, variant: int) -> Any:
        given = {}
        for field in info.fields:
            made = self._make(field.type, variant)
            given[field.name] = self._other(field, made, variant)
        if special := self._special.get(info.cls):
            given = special(given)
        return info.cls(**given)

    def _other(self, field: Any, made: Any, variant: int) -> Any:
        """`made`, unless that is the field's default."""
        if not _is_default(field, made):
            return made
        if isinstance(made, bool):
            return not made
        return self._make(field.type, variant + 1)

    def _worker(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | {
            "id": f"home-{self._next()}",
            "cores": 3,
            "lacks": ("aten.sin.default", "aten.cos.default"),
        }

    def _cosine(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | {"total_steps": given["warmup_steps"] + 50, "minimum_ratio": 0.375}

    def _topology(self, given: dict[str, Any]) -> dict[str, Any]:
        ids = [worker.id for worker in given["workers"]]
        rows = {name: self._rows() for name in ("latency_ms", "bandwidth_mbps", "jitter_ms")}
        return given | rows | {"loss": 0.015625, "submitter": ids[1]}

    def _rows(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(self._next()) + 0.5 for _ in range(2)) for _ in range(2))

    def _plan(self, given: dict[str, Any]) -> dict[str, Any]:
        """Two pipelines of two segments each, which travel over every kind of edge."""
        placements = [
            Placement(at, [f"w-{at + 1}"], self._next(), self._next(), self._next(), True, 5)
            for at in range(4)
        ]
        edges = [
            Edge(3, FEEDER, 0, self._next(), False, 8),
            Edge(4, 0, 1, self._next(), True, 2),
            Edge(5, 2, 3, self._next(), False, 2, frozen=True),
        ]
        codecs = [LinkCodec("w-1", "w-2", "int8/eden2", 5.5), LinkCodec("w-3", "w-4", "bf16", 2.0)]
        later = [LaterCodecs(7, codecs[:1]), LaterCodecs(9, codecs[1:])]
        sums = [
            Sum(self._next(), self._next(), [[0], [2]], [0, 2], 2),
            Sum(self._next(), self._next(), [[1, 3]], [3], 3),
        ]
        return {
            "placements": placements, "edges": edges, "microbatches": 5, "window": 3, "shares": [],
            "codecs": codecs, "later": later, "pipelines": [Pipeline(2, 3, 2), Pipeline(2, 2, 1)],
            "sums": sums,
            "sum_codec": "int8", "inner_steps": 20, "home": [0, 2],
        }  # fmt: skip

    def _wishes(self, given: dict[str, Any]) -> dict[str, Any]:
        links = (LinkWish("w-1", "w-3", "int8@0.5,bf16"), LinkWish("w-2", "w-4", "topk5-bf16"))
        return given | {"every": "int8/eden2", "links": links}

    def _sgd(self, given: dict[str, Any]) -> dict[str, Any]:
        return given | {"momentum": 0.875, "dampening": 0.0625, "nesterov": False, "ema": 0.75}

    def _lab(self, given: dict[str, Any]) -> dict[str, Any]:
        nodes = (Node("oslo", 5.0, 6.0, True, None, 40.0), Node("bern", 7.0, 8.0, False, None, 50.0))
        links = {("oslo", "bern"): LinkSettings(3.0, 12.0, 1.5, 0.125, 60.0)}
        return given | {"nodes": nodes, "links": links, "mtu": 1400}


def samples(kind: type) -> list[Any]:
    """Instances of one struct, so many that each type of each union and each literal in it occurs."""
    count = min(MOST_VARIANTS, _alternatives(inspect.type_info(kind), set()))
    made: list[Any] = []
    for variant in range(count):
        made.append(Maker(variant).of(kind))
        _require_filled(made[-1])
    return made


def members(kind: Any) -> list[type]:
    """The structs of a union, or the one struct itself."""
    info = inspect.type_info(kind)
    types = info.types if isinstance(info, inspect.UnionType) else (info,)
    return [one.cls for one in types]


def _alternatives(info: Any, seen: set[type]) -> int:
    own = 1
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        if info.cls in seen:
            return 1
        seen.add(info.cls)
    elif isinstance(info, inspect.LiteralType):
        own = len(info.values)
    elif isinstance(info, inspect.UnionType):
        own = sum(not _is_nothing(part) for part in info.types)
    return max([own, *(_alternatives(part, seen) for part in parts(info))])


def _is_nothing(info: Any) -> bool:
    return isinstance(info, inspect.NoneType) or type(info).__name__ == "UnsetType"


def _is_default(field: Any, value: Any) -> bool:
    if field.default_factory not in (inspect.NODEFAULT, msgspec.NODEFAULT):
        return bool(value == field.default_factory())
    return bool(value == field.default)


def _require_filled(value: Any) -> None:
    """Refuse an instance in which some field, however deep, has its default."""
    if isinstance(value, list | tuple):
        for one in value:
            _require_filled(one)
    elif isinstance(value, dict):
        _require_filled([*value.values()])
    elif isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        for field in inspect.type_info(type(value)).fields:
            found = getattr(value, field.name)
            allowed = isinstance(field.type, inspect.LiteralType) or (type(value), field.name) in _KEPT
            if _is_default(field, found) and not allowed:
                raise ValueError(f"{type(value).__name__}.{field.name} has its default, {found!r}")
            _require_filled(found)


_KEPT = {
    (SGD, "nesterov"),
    (Node, "behind_nat"),
    (Node, "shares_line_with"),
    (Edge, "frozen"),
    (Plan, "shares"),
}
"""Fields that keep their default in some instance, for a rule of their struct."""


def _bounded(info: Any, number: float) -> float:
    low = info.ge if info.ge is not None else info.gt
    high = info.le if info.le is not None else info.lt
    low = 0 if low is None else low
    if high is not None and high < 1000 and isinstance(info, inspect.FloatType):
        return low + (high - low) * (1 + number % 7) / 9
    span = math.inf if high is None else high - low
    return low + min(number, span)
