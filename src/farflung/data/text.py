"""Text as a data set for a model that predicts the next byte, with a fixed training and validation split."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farflung.errors import JobError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


VALIDATION_SHARE = 20
"""One part in this many is used for validation."""

BLOCK_BYTES = 4096
"""A single file is split in blocks of this size."""

LEFT_OUT = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "site-packages",
        # Tests are a different kind of text, and not all distributions ship them.
        "idle_test",
        "test",
        "tests",
        # Generated files: near-equal tables would stand on both sides of the split, and one manual of
        # 0.7 MB would outweigh the rest of the validation part.
        "encodings",
        "pydoc_data",
    }
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text: `train` and `validation` are uint8 arrays (bytes,); `sha256` is that of the whole text."""

    name: str
    sha256: str
    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]

    @property
    def byte_count(self) -> int:
        """Size of the whole text in bytes."""
        return len(self.train) + len(self.validation)


@lru_cache(maxsize=1)
def library() -> Corpus:
    """The sources of the running Python's standard library, in the order of file names.

    The SHA-256 of a file's relative name decides whether it belongs to validation, so its split is the same
    on every machine.

    Raises
    ------
    JobError
        This Python does not include the library's sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(_library_names(root))
    if not names:
        raise JobError(
            f"expected the Python library's sources under {root}, found none: give a text with --text FILE"
        )
    parts = [(_is_validation(name), (root / name).read_bytes()) for name in names]
    return _corpus("python-library", parts)


def file_corpus(path: Path) -> Corpus:
    """The bytes of one file, of any format.

    The 5 % of its blocks of 4096 bytes with the smallest SHA-256, at least one block, are for validation.

    Raises
    ------
    JobError
        The file is missing, unreadable, or smaller than two blocks.
    """
    try:
        path = path.resolve(strict=True)
        stat = path.stat()
        return _file_corpus(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise JobError(f"the text file {path} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=1)
def _file_corpus(path: Path, modified_ns: int, size: int) -> Corpus:
    # The last two arguments are part of the cache key, so that a changed file is read again.
    content = path.read_bytes()
    blocks = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    if len(blocks) < 2:
        raise JobError(
            f"the text file {path} has {len(content)} bytes: training and validation together need more than"
            f" {BLOCK_BYTES}"
        )
    by_hash = sorted(range(len(blocks)), key=lambda index: hashlib.sha256(blocks[index]).digest())
    validation = set(by_hash[: max(1, len(blocks) // VALIDATION_SHARE)])
    return _corpus(path.name, ((index in validation, block) for index, block in enumerate(blocks)))


def _library_names(root: Path) -> Iterator[str]:
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if LEFT_OUT.isdisjoint(relative.parts[:-1]) and path.is_file():
            yield relative.as_posix()


def _is_validation(name: str) -> bool:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") * VALIDATION_SHARE < 2**64


def _corpus(name: str, parts: Iterable[tuple[bool, bytes]]) -> Corpus:
    import numpy as np

    whole = hashlib.sha256()
    split: dict[bool, list[bytes]] = {False: [], True: []}
    for is_validation, content in parts:
        whole.update(content)
        split[is_validation].append(content)
    train, validation = (np.frombuffer(b"".join(split[key]), dtype=np.uint8) for key in (False, True))
    return Corpus(name, whole.hexdigest(), train, validation)


class TextDataset:
    """Consecutive windows of a text, without overlap.

    Item i is `{"tokens", "targets"}`, both int64 of shape (sequence,): the bytes from i * sequence on, and
    the bytes one position later. It uses one byte of memory per byte of text.

    Raises
    ------
    JobError
        `sequence` is not positive, or the text is too short for one window.
    """

    def __init__(self, corpus: Corpus, split: Literal["train", "validation"], sequence: int) -> None:
        if split not in ("train", "validation"):
            raise JobError(f'split must be "train" or "validation", found {split!r}')
        if isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 1:
            raise JobError(f"sequence must be a positive whole number, found {sequence!r}")
        self.sequence = sequence
        self._corpus = corpus
        self._bytes: NDArray[np.uint8] = corpus.train if split == "train" else corpus.validation
        if len(self) < 1:
            raise JobError(
                f"the {split} part of {corpus.name} has {len(self._bytes)} bytes, one item of sequence"
                f" {sequence} needs {sequence + 1}: give a longer text or a shorter sequence"
            )

    def __len__(self) -> int:
        return max(0, len(self._bytes) - 1) // self.sequence

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        import torch

        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a text with {len(self)} items")
        start = index * self.sequence
        window = torch.from_numpy(self._bytes[start : start + self.sequence + 1].astype("int64"))
        return {"tokens": window[:-1], "targets": window[1:]}

    def describe(self) -> dict[str, str | int]:
        """Name, size in bytes and SHA-256 of the whole text, both splits, for the run's summary."""
        return {"name": self._corpus.name, "bytes": self._corpus.byte_count, "sha256": self._corpus.sha256}


@dataclass
class _Reading:
    file: Path
    used: bool = False


_reading: ContextVar[_Reading | None] = ContextVar("text to read instead of the library", default=None)


def text(
    split: Literal["train", "validation"] = "train", sequence: int = 128, file: str | Path | None = None
) -> TextDataset:
    """One split of a text file or, without `file`, of the sources of Python's standard library.

    `farflung train --text FILE` reads FILE instead of the library.

    Raises
    ------
    JobError
        The file is missing, unreadable or too short.
    """
    reading = _reading.get()
    if file is None and reading is not None:
        reading.used = True
        file = reading.file
    return TextDataset(library() if file is None else file_corpus(Path(file)), split, sequence)


@contextmanager
def reading_from(file: str | Path) -> Iterator[None]:
    """Within this context, `text()` without a file reads `file`.

    Raises
    ------
    JobError
        When the context ends without an error and nothing has read the file.
    """
    reading = _Reading(Path(file))
    token = _reading.set(reading)
    try:
        yield
    finally:
        _reading.reset(token)
    if not reading.used:
        raise JobError(
            f"--text {file} changes nothing: the job never calls farflung.data.text() without a file"
        )
