"""The text of the race, in a file that another machine can train on, and what simple models reach on it.

The built-in text is the sources of the running Python's library, so another Python has another one. A file
holds both parts as they are here; their SHA-256 is part of every count's key.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from farflung.data.text import Corpus, library
from farflung.errors import JobError
from farflung.files import write_atomically

_MAGIC = b"farflung race text 1\n"
_BITS_A_NAT = float(np.log2(np.e))


def write_text(path: Path, corpus: Corpus | None = None) -> None:
    """Write a text, by default the built-in one, compressed to about a quarter of its size."""
    corpus = corpus or library()
    parts = corpus.train.tobytes(), corpus.validation.tobytes()
    head = f"{len(parts[0])} {len(parts[1])}\n".encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _MAGIC + zstandard.ZstdCompressor(19).compress(head + b"".join(parts)))


def read_text(path: Path) -> Corpus:
    """Read what `write_text` wrote.

    Raises
    ------
    JobError
        The file cannot be read, or is not such a file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JobError(f"the text {path} cannot be read: {error.strerror or error}") from None
    if not content.startswith(_MAGIC):
        raise JobError(f"{path} is no text of the race: write one with --write-text")
    try:
        head, whole = zstandard.decompress(content[len(_MAGIC) :]).split(b"\n", 1)
        sizes = [int(size) for size in head.split()]
    except (zstandard.ZstdError, ValueError):
        raise JobError(f"the text {path} is damaged: write it again with --write-text") from None
    if len(sizes) != 2 or sum(sizes) != len(whole):
        raise JobError(f"the text {path} is damaged: write it again with --write-text")
    train, validation = (np.frombuffer(part, np.uint8) for part in (whole[: sizes[0]], whole[sizes[0] :]))
    return Corpus("race", hashlib.sha256(whole).hexdigest(), train, validation)


@cache
def built_in() -> Corpus:
    """The built-in text of this Python, named by the digest that a file of it has."""
    corpus = library()
    digest = hashlib.sha256(corpus.train.tobytes() + corpus.validation.tobytes()).hexdigest()
    return Corpus("race", digest, corpus.train, corpus.validation)


def by_counts(train: NDArray[np.uint8], windows: NDArray[np.uint8], order: int) -> float:
    """Nats a byte of held-out windows under interpolated counts of `order` bytes, 1: a unigram.

    Each order's estimate is mixed with the next lower one's in the proportion of Witten and Bell (1991):
    count of the context against the number of different bytes seen after it. `windows` is (count,
    length + 1); as for the model, a window's first byte is given and nothing before it is known.
    """
    chance = np.full(windows[:, 1:].shape, 1 / 256)
    text, asked = train.astype(np.int64), windows.astype(np.int64)
    for length in range(order):
        width = 256**length
        context, seen = _context(text[None], length)[0], text[length:]
        together = context * 256 + seen
        pairs = np.bincount(together, minlength=width * 256)
        counts = pairs.reshape(width, 256).sum(1)
        kinds = (pairs.reshape(width, 256) > 0).sum(1)
        first = max(1, length)  # the first byte that has `length` bytes before it, and is asked for
        given, targets = _context(asked, length)[:, first - length :], asked[:, first:]
        most, novel = pairs[given * 256 + targets], kinds[given]
        known = counts[given] > 0
        mixed = (most + novel * chance[:, first - 1 :]) / np.maximum(counts[given] + novel, 1)
        chance[:, first - 1 :] = np.where(known, mixed, chance[:, first - 1 :])
    return float(-np.log(chance).mean())


def by_zstd(train: NDArray[np.uint8], windows: NDArray[np.uint8]) -> float:
    """Nats a byte of the held-out bytes as one zstd frame of level 19, with the training text before it."""
    dictionary = zstandard.ZstdCompressionDict(train.tobytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    held_out = windows[:, 1:].tobytes()
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27)
    written = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters).compress(held_out)
    return 8 * len(written) / len(held_out) / _BITS_A_NAT


def _context(rows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """For each place from `length` on, the `length` bytes before it as one number."""
    places = rows.shape[1] - length
    found = np.zeros((len(rows), places), np.int64)
    for before in range(length, 0, -1):
        found = found * 256 + rows[:, length - before : length - before + places]
    return found
