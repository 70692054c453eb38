"""Which tensors of a job workers can fetch from a URL themselves, and their digests."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from farflung.client.output.weights_reader import WeightsReader, stored_names
from farflung.errors import JobError
from farflung.opdag.form import Form
from farflung.opdag.graph import Graph
from farflung.protocol.sessions import StoredAt
from farflung.quantization import NotFiniteError
from farflung.weights.digest_store import StoredDigests
from farflung.weights.files import KINDS, Reading, StoredTensor, WeightFiles, is_url, widens

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.opdag.quantized import Quantization


class StoredBase:
    """The weights that a job names by URL, beside the tensors that its model needs.

    A model on the meta device takes its tensors from the files by name. One that has values has its own
    names, and its tensors are found in the files by name and form, or else by their bytes.

    `graph` and `state` are those of the model itself. What `quantization` names is quantized when it is
    read from the files, so digests are those of codes and scales.
    """

    def __init__(
        self,
        files: WeightFiles,
        graph: Graph,
        batch: int,
        state: Mapping[str, Tensor],
        quantization: Quantization | None = None,
    ) -> None:
        self._stored = files
        self._state = state
        self._quantization = quantization
        entries = [entry for entry in graph.inputs if entry.kind in ("parameter", "buffer")]
        self._forms = {entry.name: Form.of(graph.values[entry.value], batch) for entry in entries}
        self._aliases: dict[str, list[str]] = {}
        for alias, name in graph.ties.items():
            self._aliases.setdefault(name, []).append(alias)
        self._digests = StoredDigests(files)
        self._without_codes: set[str] = set()  # stored tensors that cannot be quantized
        self._reading = threading.Lock()
        self._places: dict[str, StoredAt | None] = {}

    def unquantized(self) -> StoredBase:
        """The same weights as they are stored, with the same digests of them."""
        other = copy.copy(self)
        other._quantization, other._places = None, {}
        return other

    @property
    def files(self) -> list[str]:
        """The URLs of the files; empty if they are paths of this machine, which no worker can reach."""
        return self._stored.files if all(map(is_url, self._stored.files)) else []

    def digests(self, names: Iterable[str]) -> dict[str, bytes]:
        """The digests of those tensors that the model takes from the files as they are, widened or quantized.

        Reads through each once, without keeping it in memory.

        Raises
        ------
        JobError
            A matrix to quantize has values that are infinite or not a number.
        WeightsError
            A file cannot be read.
        """
        reader = self._state
        if not isinstance(reader, WeightsReader):
            return {}
        with self._reading:
            found = {}
            for name in names:
                stored = reader.stored.get(name)
                if stored is not None and (how := self._how(name, self._stored.tensors[stored])) is not None:
                    found[name] = self._digest(name, stored, how)
            self._digests.save()
        return found

    def _digest(self, name: str, stored: str, how: Reading) -> bytes:
        try:
            return self._digests.sha256(stored, how)
        except NotFiniteError:
            problem = "has values that are infinite or not a number"
            raise JobError(f"quantize={how.quantized!r}: {name} {problem}") from None

    def places(self, digests: Mapping[str, bytes]) -> dict[str, StoredAt]:
        """Where workers find the tensors with these digests. Blocks while files are read."""
        if not self.files:
            return {}
        with self._reading:
            self._find_by_name([name for name in digests if name not in self._places])
            self._find_by_digest([name for name in digests if name not in self._places], digests)
        found = {name: self._places[name] for name in digests}
        return {name: place for name, place in found.items() if place is not None}

    def _find_by_name(self, names: Sequence[str]) -> None:
        for name in names:
            for candidate in stored_names(name, self._aliases.get(name, ())):
                stored = self._stored.tensors.get(candidate)
                if stored is not None and (how := self._how(name, stored)) is not None:
                    self._places[name] = _place(stored, how)
                    break

    def _find_by_digest(self, names: Sequence[str], digests: Mapping[str, bytes]) -> None:
        """Find tensors that the files call otherwise, among those of their form."""
        for name in names:
            self._places[name] = None
            for stored_name, stored in self._stored.tensors.items():
                how = self._how(name, stored)
                if how is not None and self._is(stored_name, how, digests[name]):
                    self._places[name] = _place(stored, how)
                    break
        if names:
            self._digests.save()

    def _is(self, stored_name: str, how: Reading, digest: bytes) -> bool:
        """Whether a stored tensor has this digest. One without codes may be of no concern to the model."""
        if how.quantized and stored_name in self._without_codes:
            return False
        try:
            return self._digests.sha256(stored_name, how) == digest
        except NotFiniteError:
            self._without_codes.add(stored_name)
            return False

    def _how(self, name: str, stored: StoredTensor) -> Reading | None:
        """How stored bytes become those that a worker holds; None if they are no tensor of this form."""
        dtype, shape = self._forms[name]
        if stored.shape != shape:
            return None
        is_own = KINDS.get(stored.kind) == dtype
        widened = "" if is_own else widens(stored.kind, dtype)
        if widened is None:
            return None
        if self._quantization is None or name not in self._quantization.matrices:
            return Reading(widened)
        # Values are widened before they are quantized, also where the model has the type of the file.
        return Reading(widens(stored.kind, "float32") or "", self._quantization.forms[name])


def _place(stored: StoredTensor, how: Reading) -> StoredAt:
    return StoredAt(stored.file, stored.offset, how.widened, how.quantized)
