"""What a run leaves in its folder at the end: an adapter if it trains one, else the whole weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.adapter import (
    TENSORS,
    TrainedAdapter,
    adapter_of,
    merged,
    read_adapter,
    save_adapter,
)
from farflung.client.output.run_folder import RunFolder
from farflung.client.output.tensor_file import BEST, read_metadata, read_tensors
from farflung.client.output.weights import load_weights, save_weights
from farflung.errors import CheckpointError, JobError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from farflung.client.capture.prepared import Prepared


def save_result(
    folder: RunFolder,
    prepared: Prepared,
    trained: Mapping[str, Tensor],
    step: int,
    best: str = "",
    averages: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `adapter/`, or `model.safetensors`, with the tensors that `step` steps trained.

    `best` says what makes them the best ones of a run that keeps those, for the files' metadata. With
    `averages`, `ema_adapter/` or `ema.safetensors` holds each parameter's average where it has one.

    Raises
    ------
    RunFailed
        The disk refuses the write.
    """
    module, ties = prepared.job.model, prepared.graph.ties
    kinds = [(folder.model_path, folder.adapter_path, trained)]
    if averages:
        averaged = {**trained, **averages}
        kinds.insert(0, (folder.average_path, folder.average_adapter_path, averaged))
    for file, adapter, tensors in kinds:
        if prepared.adapter is None:
            save_weights(file, module, {**prepared.own_state, **tensors}, ties, step, best)
        else:
            weights = merged(module, tensors, ties)
            made = TrainedAdapter(prepared.adapter, weights, step, prepared.base_sha256, best)
            save_adapter(adapter, made)


def step_of_best(folder: RunFolder, metric: str) -> int | None:
    """The step of the weights or the adapter in the folder if they were kept as the best ones by `metric`.

    None if there are no such files, or they cannot be read.
    """
    found = result_in(folder)
    if found is None:
        return None
    path = found / TENSORS if found.is_dir() else found
    try:
        is_best = read_metadata(path).get(BEST, "").startswith(f"{metric} ")
        return read_tensors(path)[1] if is_best else None
    except CheckpointError:
        return None


def result_in(folder: RunFolder, ema: bool = False) -> Path | None:
    """The file of weights or the folder of an adapter that a run has left; None if there is neither.

    With `ema` that of their moving averages.
    """
    adapter = folder.average_adapter_path if ema else folder.adapter_path
    file = folder.average_path if ema else folder.model_path
    if (adapter / TENSORS).is_file():
        return adapter
    return file if file.is_file() else None


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
    files = 1 if prepared.job.optimizer.ema is None else 2
    needed, free = files * sum(sizes.values()), shutil.disk_usage(path).free
    return (needed, free) if needed > free else None
