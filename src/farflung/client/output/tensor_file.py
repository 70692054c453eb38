"""Safetensors files with tied tensors: stored once, read under each of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.errors import CheckpointError
from farflung.files import sync

if TYPE_CHECKING:
    from torch import Tensor

TIE = "same as "
"""Prefix of the metadata that maps each further name of a tied tensor to the name it is stored under."""

STEP = "farflung:step"
"""Metadata: how many steps the weights were trained for."""

BEST = "farflung:best"
"""Metadata of the best weights of a run that keeps them: the metric and its value."""

BASE = "farflung:base"
"""Metadata of an adapter: the digest of the weights that it is for, see `ModelIdentity.base_sha256`."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, and put it on disk.

    Tensors that are contiguous and on the CPU are not copied; no two may share memory.

    Raises
    ------
    OSError
        The disk refuses the write; a part of the file may be left.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(on_cpu, path, dict(metadata))
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(0o644)
    sync(path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], int | None]:
    """The tensors of a file by name, and the step that it holds, if it says so.

    The file is mapped into memory: bytes are read when a tensor is used, also after the file was removed.
    The names of a tied tensor get one and the same tensor.

    Raises
    ------
    CheckpointError
        The file cannot be read, or is no such file.
    """
    with _opened(path) as file:
        metadata: dict[str, str] = file.metadata() or {}
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for alias, where in metadata.items():
        if where.startswith(TIE):
            stored = where.removeprefix(TIE)
            if stored not in tensors:
                raise CheckpointError(f"{path} lacks {stored[:80]!r}, which {alias[:80]!r} is tied to")
            tensors[alias] = tensors[stored]
    step = metadata.get(STEP, "")
    return tensors, int(step) if re.fullmatch("[0-9]{1,18}", step) else None


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file; raises `CheckpointError` if it cannot be read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None


def apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors, of which no two share memory, as safetensors demands."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        yield name, tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
