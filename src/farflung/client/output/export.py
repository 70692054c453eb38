"""Write the weights of a run as a plain state dict, for use without farflung."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from farflung.client.output.checkpoints.record import MODEL
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.run_folder import CHECKPOINTS, SUMMARY
from farflung.client.output.tensor_file import read_tensors, write_tensors
from farflung.errors import CheckpointError
from farflung.files import sync

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.output.checkpoints.contents import Checkpoint

SUFFIXES = (".safetensors", ".pt")


class Exported(msgspec.Struct, frozen=True):
    """What `farflung export` wrote. Keys are only ever added.

    `file` has `bytes` bytes and holds `tensors` tensors, read from `source`: the weights of `step`, None if
    `source` does not say. `skipped` says of other weights why they were not read.
    """

    file: str
    step: int | None
    tensors: int
    bytes: int
    source: str
    skipped: tuple[str, ...] = ()


class _Weights(NamedTuple):
    """Weights by every name that the module's state dict has, and where they were read."""

    tensors: Mapping[str, Tensor]
    step: int | None
    source: str
    skipped: tuple[str, ...] = ()


def export_weights(run: str, out: Path | None = None, step: int | None = None) -> Exported:
    """Write the newest weights of a run, or those of `step`, as a state dict that `load_state_dict` takes.

    Parameters
    ----------
    run
        A run folder, or the folder or URL of a run's checkpoints.
    out
        A file ending in `.safetensors`, or in `.pt` for `torch.load(FILE, weights_only=True)`; by default
        `RUN-STEP.safetensors` in the current folder. An older file is replaced.
    step
        The step whose weights to take; by default the newest, of the checkpoints and `model.safetensors`.

    Raises
    ------
    CheckpointError
        There are no such weights, or they are damaged; or `out` cannot be written.
    """
    if out is not None and out.suffix not in SUFFIXES:
        raise CheckpointError(f"--out must end in {' or '.join(SUFFIXES)}, found {out.name!r}")
    weights = _weights(run, step)
    if out is None:
        is_url = "://" in run
        name = CheckpointStore.open(run).name.rpartition("/")[2] if is_url else Path(run).resolve().name
        out = Path(f"{name}{'' if weights.step is None else f'-{weights.step}'}.safetensors")
    _write(out, weights.tensors)
    return Exported(
        str(out), weights.step, len(weights.tensors), out.stat().st_size, weights.source, weights.skipped
    )


def _weights(run: str, step: int | None) -> _Weights:
    """The weights of a step, or the newest ones that are whole."""
    if "://" in run:
        return _of_checkpoint(CheckpointStore.open(run), step)
    folder = Path(run)
    if not folder.is_dir():
        raise CheckpointError(
            f"expected a run folder at {run}, found {'a file' if folder.exists() else 'nothing'}"
        )
    is_run = (folder / CHECKPOINTS).is_dir()
    if (folder / SUMMARY).is_file() and not is_run and not (folder / MODEL).is_file():
        raise CheckpointError(
            f"the run in {run} ended before its weights were collected: its {SUMMARY} says why"
        )
    store = CheckpointStore.open(folder / CHECKPOINTS if is_run else folder)
    if not (folder / MODEL).is_file():
        return _of_checkpoint(store, step)
    try:
        final = _of_file(folder / MODEL)
    except CheckpointError as error:
        return _instead_of_final(store, step, str(error))
    if step is not None:
        return final if step == final.step else _of_checkpoint(store, step)
    return final if final.step is None else _newer_or_final(store, final, final.step)


def _instead_of_final(store: CheckpointStore, step: int | None, trouble: str) -> _Weights:
    """The weights of a checkpoint, as the final ones are damaged."""
    try:
        weights = _of_checkpoint(store, step)
    except CheckpointError as error:
        raise CheckpointError(f"{trouble}; {error}") from None
    return weights._replace(skipped=(trouble, *weights.skipped))


def _newer_or_final(store: CheckpointStore, final: _Weights, step: int) -> _Weights:
    """The weights of the newest whole checkpoint above that step, or else the final ones."""
    try:
        found, skipped = store.load_newest(above=step)
    except CheckpointError as error:
        return final._replace(skipped=(str(error),))
    return final._replace(skipped=skipped) if found is None else _from(store, found)


def _of_file(path: Path) -> _Weights:
    tensors, step = read_tensors(path)
    return _Weights(tensors, step, str(path))


def _of_checkpoint(store: CheckpointStore, step: int | None) -> _Weights:
    return _from(store, store.load(step))


def _from(store: CheckpointStore, found: Checkpoint) -> _Weights:
    return _Weights(found.weights, found.record.step, f"{store.name}/{found.record.step}", found.skipped)


def _write(out: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file under a temporary name, and rename it."""
    import torch

    temporary = out.with_name(f".{out.name}.new")
    try:
        if out.suffix == ".pt":
            torch.save(dict(tensors), temporary)
            sync(temporary)
        else:
            write_tensors(temporary, dict(_apart(tensors)), {"format": "pt"})
        temporary.replace(out)
        sync(out.parent)
    except (OSError, RuntimeError) as error:  # torch.save makes the second of the first
        raise CheckpointError(f"{out} cannot be written: {' '.join(str(error).split())[:200]}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors, of which no two share memory, as safetensors demands."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        yield name, tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
