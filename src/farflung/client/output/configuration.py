"""`configuration_of`: what a run trains and how, as flat names and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from farflung.client.api.job import Job
    from farflung.client.output.run_record import RunRecord

Value = str | int | float | bool
Configuration = Mapping[str, Value]

_LARGE = ("data", "validation", "sampler")
"""Fields of a job that may be lists of any length."""


def configuration_of(job: Job, record: RunRecord) -> dict[str, Value]:
    """The job's numbers and choices, the model's size, and the options that were given.

    Parts have a dot in their names, such as `optimizer.lr`. What is None is left out, and so are passwords.
    """
    parameters = list(job.model.parameters())
    model = {
        "class": type(job.model).__name__,
        "parameters": sum(one.numel() for one in parameters),
        "trained_parameters": sum(one.numel() for one in parameters if one.requires_grad),
    }
    optimizer = {"class": type(job.optimizer).__name__, **_fields(job.optimizer)}
    run = {"run": record.run, "farflung": record.farflung, "job_file": record.job}
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    fields = {name: value for name, value in fields.items() if name not in _LARGE}
    found = {**run, **fields, "model": model, "optimizer": optimizer, "options": _fields(record.options)}
    return dict(_flat("", found))


def _fields(struct: msgspec.Struct) -> dict[str, object]:
    built: dict[str, object] = msgspec.to_builtins(struct)
    return built


def _flat(name: str, value: object) -> Iterator[tuple[str, Value]]:
    """The plain values in `value`; what is neither plain nor declared, such as a function, is left out."""
    if isinstance(value, str | int | float | bool):
        if value != "":
            yield name, value
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _flat(f"{name}.{part}" if name else str(part), inner)
    elif isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and _is_declared(value)):
        yield from _flat(name, msgspec.to_builtins(value))


def _is_declared(value: object) -> bool:
    return type(value).__module__.startswith("farflung.client.")
