"""`--set FIELD=VALUE`: replace fields of a job, and of its optimizer and schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from farflung.errors import JobError
from farflung.text import printable

if TYPE_CHECKING:
    from farflung.client.api.job import Job

OPTIMIZER, SCHEDULE = "optimizer", "schedule"


def override(job: Job, given: Iterable[str]) -> Job:
    """The job with some of its fields replaced.

    Parameters
    ----------
    given
        Each is FIELD=VALUE. FIELD is one of the job's numbers, texts and switches, a field of its optimizer
        (`optimizer.lr`, or `lr` alone), or one of the optimizer's schedule
        (`optimizer.schedule.warmup_steps`). VALUE is a number, a text, `true` or `false`, or `none`; several
        numbers have commas between them.

    Raises
    ------
    JobError
        There is no such field (the message lists those that exist), no text can give its value, it is given
        twice, or the value has the wrong type or is out of range.
    """
    values: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = _full_name(job, name.strip())
        if not equals:
            raise JobError(f"--set takes FIELD=VALUE, found {printable(text[:60])!r}")
        if name in values:
            raise JobError(f"--set gives {name} twice: {values[name]} and {value.strip()}")
        values[name] = value.strip()
    if not values:
        return job
    kinds = _own_kinds()
    own = {name: _value(name, text, kinds[name]) for name, text in values.items() if name in kinds}
    optimizer = _changed(job.optimizer, OPTIMIZER, values)
    return dataclasses.replace(job, optimizer=optimizer, **own)


def fields_of(job: Job) -> list[str]:
    """The fields of a job that `override` can replace."""
    optimizer = job.optimizer
    return [
        *_own_kinds(),
        *_names(optimizer, OPTIMIZER),
        *_names(optimizer.schedule, f"{OPTIMIZER}.{SCHEDULE}"),
    ]


@cache
def _own_kinds() -> dict[str, Any]:
    """What a text can give of each field of a job that takes any such value: a type, or a union of some."""
    from torch import Tensor, nn
    from torch.utils.data import DataLoader

    from farflung.client.api.job import Job

    annotations = get_type_hints(Job, localns={"Tensor": Tensor, "nn": nn, "DataLoader": DataLoader})
    kinds = {field.name: _simple_part(annotations[field.name]) for field in dataclasses.fields(Job)}
    return {name: kind for name, kind in kinds.items() if kind not in (None, type(None))}


def _simple_part(kind: Any) -> Any:
    """The type, or those members of a union, of which a text can give a value; None if there are none."""
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if _is_simple(part)]
        return Union[tuple(parts)] if parts else None  # noqa: UP007
    return kind if _is_simple(kind) else None


def _full_name(job: Job, name: str) -> str:
    known = fields_of(job)
    for candidate in (name, f"{OPTIMIZER}.{name}", f"{OPTIMIZER}.{SCHEDULE}.{name}"):
        if candidate in known:
            return candidate
    if name in {field.name for field in dataclasses.fields(job)}:
        raise JobError(f"--set: {name} cannot be set here: write it in the job file")
    close = get_close_matches(name, [*known, *(one.rpartition(".")[2] for one in known)], 1, 0.75)
    hint = f"did you mean {close[0]}? It" if close else "it"
    raise JobError(f"--set: the job has no field {printable(name[:60])!r}; {hint} has {', '.join(known)}")


def _names(struct: msgspec.Struct, path: str) -> list[str]:
    types = get_type_hints(type(struct))
    return [f"{path}.{name}" for name in struct.__struct_fields__ if _is_simple(types[name])]


def _is_simple(kind: Any) -> bool:
    """Whether a text can give a value of that type: a number, a text, a switch, or a list of numbers."""
    if kind in (int, float, bool, str, type(None), ...) or get_origin(kind) is Literal:
        return True
    return get_origin(kind) in (tuple, Union, UnionType) and all(map(_is_simple, get_args(kind)))


def _changed(struct: Any, path: str, values: Mapping[str, str]) -> Any:
    """The optimizer or schedule at that path, with its own fields and those below replaced."""
    types = get_type_hints(type(struct))
    changes = {
        name: _value(f"{path}.{name}", values[f"{path}.{name}"], types[name])
        for name in struct.__struct_fields__
        if f"{path}.{name}" in values
    }
    if SCHEDULE in struct.__struct_fields__:
        changes[SCHEDULE] = _changed(struct.schedule, f"{path}.{SCHEDULE}", values)
    try:
        return msgspec.structs.replace(struct, **changes)
    except ValueError as error:
        raise JobError(f"--set: {path}: {error}") from None


def _value(name: str, text: str, kind: Any) -> Any:
    """The text as a value of that type."""
    if type(None) in get_args(kind) and text.lower() in ("none", "null"):
        return None
    given: Any = [part.strip() for part in text.split(",")] if get_origin(kind) is tuple else text
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError:
        found = printable(text[:60])
        raise JobError(f"--set {name} takes {_words(kind)}, found {found!r}") from None


def _words(kind: Any) -> str:
    """A type in words, such as "a number or none"."""
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if get_origin(kind) is tuple:
        parts = [part for part in get_args(kind) if part is not ...]
        return f"{'values' if ... in get_args(kind) else f'{len(parts)} values'} with a comma between"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_words, get_args(kind)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, "none")
