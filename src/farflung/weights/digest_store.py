"""Digests of stored tensors, kept so that a file that has not changed is read through only once."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from farflung.files import cache_folder, make_folder, write_atomically
from farflung.quantization import LAYOUT
from farflung.weights.files import AS_IT_IS, Reading, WeightFiles


class StoredDigests:
    """The SHA-256 of the tensors of `files`, each computed once for each version of its file.

    `folder` is where they are kept, by default in the user's cache; a disk that refuses keeps none.
    """

    def __init__(self, files: WeightFiles, folder: Path | None = None) -> None:
        self._files = files
        self._folder = folder or cache_folder() / "digests"
        self._known: list[dict[str, str]] = []
        self._places = [self._place(*named) for named in zip(files.files, files.versions(), strict=True)]
        for place in self._places:
            found: dict[str, str] = {}
            with suppress(OSError, msgspec.MsgspecError):
                found = msgspec.json.decode(b"" if place is None else place.read_bytes(), type=dict[str, str])
            self._known.append(found)

    def sha256(self, name: str, how: Reading = AS_IT_IS) -> bytes:
        """The digest of a tensor, as `WeightFiles.sha256` gives it."""
        number, key = self._files.tensors[name].file, f"{name}{_form(how)}"
        known = self._known[number].get(key, "")
        if len(known) != 64:
            known = self._known[number][key] = self._files.sha256(name, how).hex()
        return bytes.fromhex(known)

    def save(self) -> None:
        """Keep what is known now for later runs."""
        with suppress(OSError):
            make_folder(self._folder)
            for place, known in zip(self._places, self._known, strict=True):
                if place is not None and known:
                    write_atomically(place, msgspec.json.encode(known))

    def _place(self, file: str, version: str) -> Path | None:
        """The file for the digests of one version; None if versions cannot be told apart."""
        if not version:
            return None
        return self._folder / f"{hashlib.sha256(f'{file} {version}'.encode()).hexdigest()}.json"


def _form(how: Reading) -> str:
    """What tells digests of the same stored tensor apart."""
    if how.quantized:
        return f" in {how.quantized}/{LAYOUT}"
    return " in float32" if how.widened else ""
