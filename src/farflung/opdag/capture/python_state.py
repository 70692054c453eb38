"""Python state around a forward: attributes of modules, and random numbers from outside torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import here

_PLAIN = (bool, int, float, str, type(None))
_KEPT_BY_TORCH = frozenset({"training", "_is_full_backward_hook", "_compiled_call_impl"})

Attributes = Mapping[tuple[str, str], object]
"""Attributes by (module path, name)."""


@dataclass(frozen=True)
class KeptTensor:
    """The description of a tensor without values that forward left as an attribute."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def attributes(module: nn.Module) -> Attributes:
    """Attributes of a module and its submodules: numbers, strings, booleans, None, and tensors outside its
    state.
    """
    return {
        (path, name): value
        for path, part in _parts(module).items()
        for name, value in part.__dict__.items()
        if isinstance(value, (*_PLAIN, Tensor)) and name not in _KEPT_BY_TORCH
    }


def _parts(module: nn.Module) -> dict[str, nn.Module]:
    """Modules by path; one that stands twice has two, since export makes two modules of it."""
    return dict(module.named_modules(remove_duplicate=False))


def left_by(module: nn.Module, before: Attributes) -> Attributes:
    """The attributes that forward leaves behind, with descriptions of new tensors."""
    return {
        key: _description(value) if isinstance(value, Tensor) and value is not before.get(key) else value
        for key, value in attributes(module).items()
    }


def _description(tensor: Tensor) -> KeptTensor:
    sizes: Iterable[Any] = tensor.shape  # shapes of fake tensors contain symbols
    numbers = (size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes)
    return KeptTensor(tensor.dtype, tuple(int(number) for number in numbers))


def changed(before: Attributes, after: Attributes) -> list[str]:
    """Attributes that differ, as `path.name`."""
    missing = object()
    return [
        f"{path}.{name}".lstrip(".")
        for path, name in sorted({*before, *after})
        if not _same(before.get((path, name), missing), after.get((path, name), missing))
    ]


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    return type(one) is type(other) and (one == other or one != one)


def put(module: nn.Module, wanted: Attributes) -> None:
    """Restore every attribute; removes new ones, and sets zeros for described tensors."""
    parts = _parts(module)
    for path, name in attributes(module).keys() - wanted.keys():
        parts[path].__dict__.pop(name, None)  # a module of two paths has lost it already
    for (path, name), value in wanted.items():
        kept = torch.zeros(value.shape, dtype=value.dtype) if isinstance(value, KeptTensor) else value
        parts[path].__dict__[name] = kept


@contextmanager
def forbid_foreign_randomness() -> Iterator[None]:
    """Refuse a forward that draws from Python's or numpy's generator, or seeds torch's.

    Such a number would be drawn once, at capture, and be the same in every step.
    """
    seeds = {"manual_seed": torch.manual_seed, "seed": torch.seed}
    before = _generators()

    def refuse(*_: Any, **__: Any) -> Any:
        raise CaptureError(
            f"forward seeds torch's generator ({here()}): draws come from the job's seed, leave it out",
            "random-numbers",
        )

    try:
        for name in seeds:
            setattr(torch, name, refuse)
            setattr(torch.random, name, refuse)
        yield
    finally:
        for name, original in seeds.items():
            setattr(torch, name, original)
            setattr(torch.random, name, original)
    for library, state in _generators().items():
        if state != before.get(library, state):
            raise CaptureError(
                f"forward draws random numbers from {library}, which capture would keep as they are: draw"
                " them with torch (torch.rand, dropout), or in the data set",
                "random-numbers",
            )


def _generators() -> dict[str, object]:
    found: dict[str, object] = {"Python's random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy.random"] = (kind, keys.tobytes(), *rest)
    return found
