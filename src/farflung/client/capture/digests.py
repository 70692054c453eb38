"""The SHA-256 of a model's tensors, by which workers know base weights that they have already."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.capture.stored_base import StoredBase


class Digests:
    """The digests of the tensors of `state`, each computed once; only for tensors that never change.

    A tensor's bytes are row-major and little endian; its element type and shape are not part of them. Those
    of tensors that are `stored` in files are computed without making a tensor of them.
    """

    def __init__(self, state: Mapping[str, Tensor], stored: StoredBase | None = None) -> None:
        self._state, self._stored = state, stored
        self._known: dict[str, bytes] = {}
        self._computing = threading.Lock()  # several workers' shares can begin with the same tensor

    def of(self, names: Iterable[str]) -> dict[str, bytes]:
        """The digests of these tensors. Blocks for as long as it takes to read those that are new."""
        from farflung.runtime.torch_backend.tensors import memory, outgoing

        names = list(names)
        with self._computing:
            if self._stored is not None:
                self._known |= self._stored.digests(name for name in names if name not in self._known)
            for name in names:
                if name not in self._known:
                    tensor = outgoing(self._state[name]).cpu()
                    self._known[name] = hashlib.sha256(memory(tensor)).digest()
            return {name: self._known[name] for name in names}
