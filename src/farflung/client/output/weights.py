"""Save a trained model as `model.safetensors`, and load it into the user's own module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.client.output.run_folder import disk_failure
from farflung.client.output.tensor_file import BEST, STEP, TIE, read_tensors, write_tensors
from farflung.errors import CheckpointError, JobError
from farflung.files import sync

if TYPE_CHECKING:
    from torch import Tensor, nn


def save_weights(
    path: Path,
    module: nn.Module,
    trained: Mapping[str, Tensor],
    ties: Mapping[str, str],
    step: int,
    best: str = "",
) -> None:
    """Write the module's state by name, with its tensors replaced by those that `step` steps trained.

    If writing fails, the old file remains. A tied tensor is stored once; the file's metadata maps its other
    names to that one. `best`, if not empty, is put there, too.

    Raises
    ------
    RunFailed
        The disk refuses the write.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        tensors, metadata = named_weights(module, trained, ties, step)
        write_tensors(temporary, tensors, metadata | ({BEST: best} if best else {}))
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        raise disk_failure(path.parent, str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def load_weights(path: Path, module: nn.Module) -> None:
    """Load the state that `save_weights` wrote into the module; all names must match.

    Raises
    ------
    JobError
        The file cannot be read, or is of another model.
    """
    try:
        state, _ = read_tensors(path)
        extra = {name: value for name, value in module.state_dict().items() if not _is_tensor(value)}
        has_no_values = any(tensor.is_meta for tensor in module.parameters())
        module.load_state_dict({**state, **extra}, strict=True, assign=has_no_values)
    except (CheckpointError, RuntimeError) as error:
        line = " ".join(str(error).split())[:300]
        raise JobError(f"{path} does not fit the model: {line}") from error


def named_weights(
    module: nn.Module,
    trained: Mapping[str, Tensor],
    ties: Mapping[str, str],
    step: int,
    whole: bool = True,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file of weights: the module's state by name, each tensor once.

    `trained` tensors take the place of the module's own, which are left out unless it is to be `whole`;
    `ties` maps further names of a tensor to its name.
    """
    tensors: dict[str, Tensor] = {}
    metadata = {STEP: str(step)}
    written: dict[int, str] = {}
    for name, own in module.state_dict(keep_vars=True).items():
        if not _is_tensor(own):
            continue
        first = ties.get(name) or written.setdefault(id(own), name)
        if not whole and first not in trained:
            continue
        if first != name:
            metadata[name] = TIE + first
        elif name in trained:
            tensors[name] = trained[name]
        elif not own.is_meta:  # else the loss does not depend on it, and no worker owns it
            tensors[name] = own.detach().clone()  # safetensors refuses tensors that share memory
    return tensors, metadata


def _is_tensor(value: object) -> bool:
    from torch import Tensor

    return isinstance(value, Tensor)
