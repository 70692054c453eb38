"""Read the weights of a model on the meta device from safetensors files, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from farflung.errors import JobError
from farflung.opdag.graph import FLOATING, Graph, Input

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"


class _Index(msgspec.Struct):
    """The index that Hugging Face writes beside a model's shards: tensor name -> file name."""

    weight_map: dict[str, str]


class WeightsReader(Mapping[str, "Tensor"]):
    """A graph's parameters and buffers by name; each is read on access and not cached.

    Parameters
    ----------
    path
        A safetensors file, or a folder with `model.safetensors.index.json` or one or more such files.
    graph
        Gives the needed names, shapes and element types; floating point types are converted.
    own
        Tensors of the module itself, used for names that are in no file.

    Raises
    ------
    JobError
        A file cannot be read, or a tensor is missing or of another shape.
    """

    def __init__(self, path: Path, graph: Graph, own: Mapping[str, Tensor]) -> None:
        self._entries = {entry.name: entry for entry in graph.inputs if entry.kind in ("parameter", "buffer")}
        self._graph = graph
        self._own = own
        self._files = _files_by_name(path)
        self._stored = {name: self._stored_name(path, entry) for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        from farflung.runtime.torch_backend.tensors import DTYPES

        stored = self._stored[name]
        if stored is None:
            return self._own[name]
        with _opened(self._files[stored]) as file:
            tensor: Tensor = file.get_tensor(stored)
        return tensor.to(DTYPES[self._graph.values[self._entries[name].value].dtype])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _stored_name(self, path: Path, entry: Input) -> str | None:
        """The tensor's name in the files; None if the module's own tensor is used."""
        aliases = [alias for alias, name in self._graph.ties.items() if name == entry.name]
        for name in (entry.name, *aliases):
            if name in self._files:
                self._require_fit(name, entry)
                return name
        if entry.name not in self._own:
            raise JobError(f"{path} has no {entry.name!r}, which the model needs: give all its weights")
        return None

    def _require_fit(self, stored: str, entry: Input) -> None:
        wanted = self._graph.values[entry.value]
        with _opened(self._files[stored]) as file:
            view = file.get_slice(stored)
            shape, kind = list(view.get_shape()), str(view.get_dtype())
        if shape != list(wanted.shape):
            raise JobError(
                f"{self._files[stored]} has {stored!r} in shape {shape}, the model has {list(wanted.shape)}"
            )
        if kind.startswith(("F", "BF")) != (wanted.dtype in FLOATING):
            raise JobError(f"{self._files[stored]} has {stored!r} as {kind}, the model has {wanted.dtype}")


def _files_by_name(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        return dict.fromkeys(_names_in(path), path)
    index = path / INDEX
    if not index.is_file():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise JobError(f"expected safetensors files in {path}, found none")
        return {name: file for file in files for name in _names_in(file)}
    try:
        listed = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (OSError, msgspec.MsgspecError) as error:
        raise JobError(f"{index} cannot be read: {error}") from None
    if outside := [file for file in listed.values() if Path(file).name != file]:
        raise JobError(f"{index} names a file that is not beside it: {outside[0][:80]!r}")
    return {name: path / file for name, file in listed.items()}


def _names_in(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        line = " ".join(str(error).split())[:200]
        raise JobError(f"the weights in {path} cannot be read: {line}") from None
