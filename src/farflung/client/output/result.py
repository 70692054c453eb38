"""What a run leaves in its folder at the end: an adapter if it trains one, else the whole weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.adapter import TENSORS, adapter_of, merged, read_adapter, save_adapter
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.tensor_file import read_tensors
from farflung.client.output.weights import load_weights, save_weights
from farflung.errors import CheckpointError, JobError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from farflung.client.capture.prepared import Prepared


def save_result(
    folder: RunFolder, prepared: Prepared, trained: Mapping[str, Tensor], step: int, best: str = ""
) -> None:
    """Write `adapter/`, or `model.safetensors`, with the tensors that `step` steps trained.

    `best` says what makes them the best ones of a run that keeps those, for the file's metadata.

    Raises
    ------
    RunFailed
        The disk refuses the write.
    """
    module, ties = prepared.job.model, prepared.graph.ties
    if prepared.adapter is None:
        save_weights(folder.model_path, module, {**prepared.state, **trained}, ties, step, best)
        return
    weights = merged(module, trained, ties)
    save_adapter(folder.adapter_path, prepared.adapter, weights, step, prepared.base_sha256, best)


def step_of_result(folder: RunFolder) -> int | None:
    """The step of the weights or the adapter that the folder holds; None if none can be read."""
    found = result_in(folder)
    if found is None:
        return None
    try:
        return read_tensors(found / TENSORS if found.is_dir() else found)[1]
    except CheckpointError:
        return None


def result_in(folder: RunFolder) -> Path | None:
    """The file of weights or the folder of an adapter that a run has left; None if there is neither."""
    if (folder.adapter_path / TENSORS).is_file():
        return folder.adapter_path
    return folder.model_path if folder.model_path.is_file() else None


def read_result(path: Path) -> dict[str, Tensor]:
    """The tensors that `save_result` wrote: an adapter's by PEFT's names, or the whole state dict.

    Raises
    ------
    CheckpointError
        The file cannot be read.
    """
    return read_adapter(path)[0] if path.is_dir() else read_tensors(path)[0]


def load_result(path: Path, model: nn.Module) -> None:
    """Load what `save_result` wrote into a module like the job's.

    Raises
    ------
    JobError
        The files cannot be read, or are of another model.
    """
    if not path.is_dir():
        load_weights(path, model)
        return
    if (adapter := adapter_of(model)) is None:
        raise JobError(f"{path} is an adapter: load it into a PEFT model with one active adapter")
    try:
        adapter.load(read_result(path))
    except CheckpointError as error:
        raise JobError(str(error)) from None


def lacking_room(path: Path, prepared: Prepared) -> tuple[int, int] | None:
    """The bytes that a run's result needs and the free bytes of the disk at `path`; None if it fits.

    Other files of the run, and what other processes write meanwhile, are not counted.
    """
    from torch import Tensor

    tensors = prepared.job.model.state_dict(keep_vars=True)
    names = tensors if prepared.adapter is None else prepared.changed & tensors.keys()
    sizes = {id(one): one.nbytes for name in names if isinstance(one := tensors[name], Tensor)}
    needed, free = sum(sizes.values()), shutil.disk_usage(path).free
    return (needed, free) if needed > free else None
