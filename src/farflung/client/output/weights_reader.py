"""Read the weights of a model on the meta device from safetensors files, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.errors import JobError, WeightsError
from farflung.opdag.form import Form
from farflung.opdag.graph import FLOATING, Graph, Input
from farflung.weights.files import KINDS, StoredTensor, WeightFiles, is_url

if TYPE_CHECKING:
    from torch import Tensor

_WRAPPERS = ("base_model.model.", "base_model.", "module.", "_orig_mod.")
_OBJECTIVES = ("policy.", "student.")
_INSIDE = (".base_layer.", ".original_module.")


def open_weights(place: str) -> WeightFiles:
    """The files of weights at a path or URL; JobError if they cannot be read."""
    try:
        return WeightFiles(place)
    except WeightsError as error:
        raise JobError(_line(place, error)) from None


def stored_names(name: str, aliases: Sequence[str] = ()) -> Iterator[str]:
    """Names under which a file may have a model's parameter: its own, those it is tied to, and a base's.

    PEFT puts a model and the layers that it adapts into modules of its own, and so do torch's wrappers and
    our objectives.
    """
    for one in (name, *aliases):
        yield one
    for one in (name, *aliases):
        for inside in _INSIDE:
            one = one.replace(inside, ".")
        yield one
        for objective in _OBJECTIVES:
            if one.startswith(objective):
                one = one.removeprefix(objective)
                yield one
        for wrapper in _WRAPPERS:
            if one.startswith(wrapper):
                yield one.removeprefix(wrapper)


class WeightsReader(Mapping[str, "Tensor"]):
    """A graph's parameters and buffers by name; each is read on access and not cached.

    Parameters
    ----------
    files
        The safetensors files.
    graph
        Gives the needed names, shapes and element types; floating point types are converted.
    own
        Tensors of the module itself, used for names that are in no file.

    Raises
    ------
    JobError
        A file cannot be read, or a tensor is missing or of another shape.
    """

    def __init__(self, files: WeightFiles, graph: Graph, own: Mapping[str, Tensor]) -> None:
        self._entries = {entry.name: entry for entry in graph.inputs if entry.kind in ("parameter", "buffer")}
        self._graph = graph
        self._own = own
        self.files = files
        self.stored = {
            name: stored for name, entry in self._entries.items() if (stored := self._stored_name(entry))
        }
        """The name in the files of each tensor that they have."""

    def __getitem__(self, name: str) -> Tensor:
        from farflung.runtime.torch_backend.tensors import DTYPES, allocate, over

        stored = self.stored.get(name)
        if stored is None:
            return self._own[name]
        found = self.files.tensors[stored]
        buffer, at = allocate(found.bytes), 0

        def take(part: memoryview) -> None:
            nonlocal at
            buffer[at : at + len(part)] = part
            at += len(part)

        try:
            self.files.read(stored, take)
        except WeightsError as error:
            raise JobError(_line(self.files.name, error)) from None
        tensor = over(buffer, Form(KINDS[found.kind], found.shape))  # type: ignore[arg-type]
        return tensor.to(DTYPES[self._graph.values[self._entries[name].value].dtype])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _stored_name(self, entry: Input) -> str | None:
        """The tensor's name in the files; None if the module's own tensor is used."""
        aliases = [alias for alias, name in self._graph.ties.items() if name == entry.name]
        for name in stored_names(entry.name, aliases):
            if name in self.files.tensors:
                self._require_fit(name, entry, self.files.tensors[name])
                return name
        if entry.name not in self._own:
            raise JobError(
                f"{self.files.name} has no {entry.name!r}, which the model needs: give all its weights"
            )
        return None

    def _require_fit(self, stored: str, entry: Input, found: StoredTensor) -> None:
        wanted = self._graph.values[entry.value]
        file = self.files.files[found.file]
        if list(found.shape) != list(wanted.shape):
            raise JobError(
                f"{file} has {stored!r} in shape {list(found.shape)}, the model has {list(wanted.shape)}"
            )
        kind = KINDS.get(found.kind)
        if kind is None or (kind in FLOATING) != (wanted.dtype in FLOATING):
            raise JobError(f"{file} has {stored!r} as {found.kind}, the model has {wanted.dtype}")


def _line(place: str, error: WeightsError) -> str:
    """The error in one line that names the place."""
    line = " ".join(str(error).split())[:300]
    return line if is_url(place) else f"the weights in {place} cannot be read: {line}"
