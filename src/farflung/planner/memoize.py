"""Compute a table once for each workload, however many fleets it is planned for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from farflung.workload import Workload

P = ParamSpec("P")
T = TypeVar("T")


def once(function: Callable[Concatenate[Workload, P], T]) -> Callable[Concatenate[Workload, P], T]:
    """Keep the answers of a pure function with the workload they are of; they go when it goes.

    Arguments beside the workload must be hashable, and nobody may change an answer.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def asked(workload: Workload, *args: P.args, **kwargs: P.kwargs) -> T:
        kept: dict[object, T] = vars(workload).setdefault(name, {})  # where `cached_property` keeps its own
        key = (args, tuple(sorted(kwargs.items())))
        if key not in kept:
            kept[key] = function(workload, *args, **kwargs)
        return kept[key]

    return asked
