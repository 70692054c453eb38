"""Write the weights of a run as a plain state dict, for use without farflung."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from farflung.client.output.adapter import CONFIG, TENSORS, read_adapter
from farflung.client.output.checkpoints.record import MODEL
from farflung.client.output.checkpoints.store import CheckpointStore
from farflung.client.output.run_folder import ADAPTER, CHECKPOINTS, SUMMARY
from farflung.client.output.tensor_file import (
    BASE,
    BEST,
    STEP,
    apart,
    read_metadata,
    read_tensors,
    write_tensors,
)
from farflung.errors import CheckpointError
from farflung.files import replace_folder, sync, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.capture.prepared import Prepared
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
    """Weights by every name that the module's state dict has, and where they were read.

    If the model has frozen parameters, `tensors` lacks what no step changes, whose digest is `base`. With the
    `config` of an adapter, `tensors` has PEFT's names.
    """

    tensors: Mapping[str, Tensor]
    step: int | None
    source: str
    skipped: tuple[str, ...] = ()
    base: str = ""
    config: bytes = b""


def export_weights(
    run: str, out: Path | None = None, step: int | None = None, whole: Prepared | None = None
) -> Exported:
    """Write the newest weights of a run, or those of `step`, as a state dict that `load_state_dict` takes.

    Of a run that trains an adapter it writes that, as a folder that PEFT loads.

    Parameters
    ----------
    run
        A run folder, or the folder or URL of a run's checkpoints.
    out
        A file ending in `.safetensors`, or in `.pt` for `torch.load(FILE, weights_only=True)`; by default
        `RUN-STEP.safetensors` in the current folder. For an adapter, a folder; by default `RUN-STEP-adapter`.
        An older file or adapter is replaced.
    step
        The step whose weights to take; by default the newest, of the checkpoints and the run's end.
    whole
        The run's job, whose frozen weights are written with those that the run trained.

    Raises
    ------
    CheckpointError
        There are no such weights, or they are damaged; they are of another base than that of `whole`; or
        `out` cannot be written.
    """
    weights = _weights(run, step)
    if whole is not None:
        weights = _on_base(weights, whole)
    if out is None:
        is_url = "://" in run
        name = CheckpointStore.open(run).name.rpartition("/")[2] if is_url else Path(run).resolve().name
        suffix = "-adapter" if weights.config else ".safetensors"
        out = Path(f"{name}{'' if weights.step is None else f'-{weights.step}'}{suffix}")
    if weights.config:
        _write_adapter(out, weights)
    elif weights.base:
        raise CheckpointError(
            f"{weights.source} leaves out the frozen weights: add --whole, which takes them from the job file"
        )
    elif out.suffix not in SUFFIXES:
        raise CheckpointError(f"--out must end in {' or '.join(SUFFIXES)}, found {out.name!r}")
    else:
        _write(out, weights.tensors)
    files = [out] if out.is_file() else list(out.iterdir())
    size = sum(file.stat().st_size for file in files)
    return Exported(str(out), weights.step, len(weights.tensors), size, weights.source, weights.skipped)


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
    results = [path for path in (folder / MODEL, folder / ADAPTER / TENSORS) if path.is_file()]
    if (folder / SUMMARY).is_file() and not is_run and not results:
        raise CheckpointError(
            f"the run in {run} ended before its weights were collected: its {SUMMARY} says why"
        )
    store = CheckpointStore.open(folder / CHECKPOINTS if is_run else folder)
    if not results:
        return _of_checkpoint(store, step)
    try:
        final = _of_file(results[0])
    except CheckpointError as error:
        return _instead_of_final(store, step, str(error))
    if step is not None:
        return final if step == final.step else _of_checkpoint(store, step)
    is_best = BEST in read_metadata(results[0])  # later weights are worse
    return final if final.step is None or is_best else _newer_or_final(store, final, final.step)


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
    if path.name != TENSORS:
        return _Weights(tensors, step, str(path))
    _, config = read_adapter(path.parent)
    return _Weights(tensors, step, str(path.parent), base=read_metadata(path).get(BASE, ""), config=config)


def _of_checkpoint(store: CheckpointStore, step: int | None) -> _Weights:
    return _from(store, store.load(step))


def _from(store: CheckpointStore, found: Checkpoint) -> _Weights:
    tensors = found.adapter if found.adapter_config else found.weights
    where, base = f"{store.name}/{found.record.step}", found.record.identity.model.base_sha256 or ""
    return _Weights(tensors, found.record.step, where, found.skipped, base, found.adapter_config)


def _on_base(weights: _Weights, whole: Prepared) -> _Weights:
    """The trained weights together with the frozen ones of the job, which are loaded into its model."""
    if not weights.base:
        return weights
    if weights.base != whole.base_sha256:
        raise CheckpointError(
            f"{weights.source} is of another base: its frozen weights are {weights.base[:12]}, those of the"
            f" job are {whole.base_sha256[:12] or 'none'}"
        )
    if not whole.job.has_values:
        raise CheckpointError(
            "--whole needs a job whose model has its values, this one is on the meta device"
        )
    model = whole.job.model
    if weights.config and whole.adapter is not None:
        whole.adapter.load(weights.tensors)
    elif weights.config:
        raise CheckpointError(f"{weights.source} is an adapter, but the job's model has none")
    else:
        model.load_state_dict(weights.tensors, strict=False)
    once: dict[int, Tensor] = {}
    state = {
        name: once.setdefault(id(tensor), tensor.detach())
        for name, tensor in model.state_dict(keep_vars=True).items()
    }
    return weights._replace(tensors=state, base="", config=b"")


def _write_adapter(out: Path, weights: _Weights) -> None:
    """Write an adapter's folder; one that holds other files is not replaced."""
    if out.exists() and not (out.is_dir() and {path.name for path in out.iterdir()} <= {CONFIG, TENSORS}):
        raise CheckpointError(f"{out} is no folder of an adapter alone: choose another --out")
    step = {} if weights.step is None else {STEP: str(weights.step)}
    try:
        with replace_folder(out) as folder:
            write_tensors(folder / TENSORS, weights.tensors, {"format": "pt", BASE: weights.base, **step})
            write_atomically(folder / CONFIG, weights.config)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror or error}") from error


def _write(out: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file under a temporary name, and rename it."""
    import torch

    temporary = out.with_name(f".{out.name}.new")
    try:
        if out.suffix == ".pt":
            torch.save(dict(tensors), temporary)
            sync(temporary)
        else:
            write_tensors(temporary, dict(apart(tensors)), {"format": "pt"})
        temporary.replace(out)
        sync(out.parent)
    except (OSError, RuntimeError) as error:  # torch.save makes the second of the first
        raise CheckpointError(f"{out} cannot be written: {' '.join(str(error).split())[:200]}") from error
    finally:
        temporary.unlink(missing_ok=True)
