"""Save a trained model as `model.safetensors`, and load it into the user's own module."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.run_folder import disk_failure
from farflung.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor, nn

TIE = "same as "
"""Prefix of the metadata that maps each further name of a tied tensor to the name it is stored under."""


def save_weights(
    path: Path, module: nn.Module, trained: Mapping[str, Tensor], ties: Mapping[str, str]
) -> None:
    """Write the module's state by name, with its tensors replaced by the trained ones.

    If writing fails, the old file remains. A tied tensor is stored once; the file's metadata maps its other
    names to that one.

    Raises
    ------
    RunFailed
        The disk refuses the write.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, metadata = _distinct(module, trained, ties)
    temporary = path.with_name(f".{path.name}.new")
    try:
        save_file(tensors, temporary, metadata)
        temporary.chmod(0o644)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise disk_failure(path.parent, str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def lacking_room(folder: Path, module: nn.Module) -> tuple[int, int] | None:
    """The bytes that the module's weights need and the free bytes of the disk; None if they fit.

    Other files of the run, and what other processes write meanwhile, are not counted.
    """
    tensors = {id(t): t.nbytes for t in module.state_dict(keep_vars=True).values() if _is_tensor(t)}
    needed, free = sum(tensors.values()), shutil.disk_usage(folder).free
    return (needed, free) if needed > free else None


def load_weights(path: Path, module: nn.Module) -> None:
    """Load the state that `save_weights` wrote into the module; all names must match.

    Raises
    ------
    JobError
        The file cannot be read, or is of another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for alias, where in (file.metadata() or {}).items():
                if where.startswith(TIE):
                    state[alias] = state[where.removeprefix(TIE)]
        extra = {name: value for name, value in module.state_dict().items() if not _is_tensor(value)}
        has_no_values = any(tensor.is_meta for tensor in module.parameters())
        module.load_state_dict({**state, **extra}, strict=True, assign=has_no_values)
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        line = " ".join(str(error).split())[:300]
        raise JobError(f"{path} does not fit the model: {line}") from error


def _distinct(
    module: nn.Module, trained: Mapping[str, Tensor], ties: Mapping[str, str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    written: dict[int, str] = {}
    for name, own in module.state_dict(keep_vars=True).items():
        if not _is_tensor(own):
            continue
        first = ties.get(name) or written.setdefault(id(own), name)
        if first != name:
            metadata[name] = TIE + first
        elif name in trained or not own.is_meta:  # else the loss does not depend on it, and no worker owns it
            # A copy: safetensors refuses tensors that share memory.
            tensors[name] = (trained[name] if name in trained else own.detach().clone()).cpu().contiguous()
    return tensors, metadata


def _is_tensor(value: object) -> bool:
    from torch import Tensor

    return isinstance(value, Tensor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
