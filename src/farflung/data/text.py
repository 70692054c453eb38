"""Text as a data set for a model that predicts the next byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from farflung.data.corpus import Corpus, file_corpus, library
from farflung.errors import JobError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class TextDataset:
    """Windows of a text that follow each other without overlap.

    Item i is `{"tokens", "targets"}`, both int64 of shape (sequence,): bytes from i * sequence on, and the
    same bytes one place later. Memory is one byte a byte of text.

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


_reading: ContextVar[_Reading | None] = ContextVar("text to read in place of the library", default=None)


def text(
    split: Literal["train", "validation"] = "train", sequence: int = 128, file: str | Path | None = None
) -> TextDataset:
    """One split of a text file or, without `file`, of the running Python's own library sources.

    `farflung train --text FILE` puts FILE in the library's place.

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
    """Within this context, `text()` without a file of its own reads `file`.

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
