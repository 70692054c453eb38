"""Compute a table once for each workload, even if it is planned for many fleets."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from farflung.workload import Workload

P = ParamSpec("P")
T = TypeVar("T")


def once(function: Callable[Concatenate[Workload, P], T]) -> Callable[Concatenate[Workload, P], T]:
    """Cache the results of a pure function in its workload, so that they live as long as the workload.

    Other arguments must be hashable, and callers must not change the results.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def wrapper(workload: Workload, *args: P.args, **kwargs: P.kwargs) -> T:
        cache: dict[object, T] = vars(workload).setdefault(name, {})  # as `cached_property` does
        key = (args, tuple(sorted(kwargs.items())))
        if key not in cache:
            cache[key] = function(workload, *args, **kwargs)
        return cache[key]

    return wrapper
