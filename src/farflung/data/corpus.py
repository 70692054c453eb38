"""Bodies of text as bytes, split for good into a training and a validation part."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from farflung.errors import JobError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VALIDATION_SHARE = 20
"""One part in so many is kept for validation."""

BLOCK_BYTES = 4096
"""A single file is split in blocks of this size."""

LEFT_OUT = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "site-packages",
        # Tests are another kind of text, and distributions differ in whether they ship them.
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
    """Bytes of a text: `train` and `validation` are uint8, (bytes,). `sha256` is of the whole text."""

    name: str
    sha256: str
    train: NDArray[np.uint8]
    validation: NDArray[np.uint8]

    @property
    def byte_count(self) -> int:
        """Size of the whole text."""
        return len(self.train) + len(self.validation)


@lru_cache(maxsize=1)
def library() -> Corpus:
    """The sources of the running Python's own library, files in the order of their names.

    A file belongs to validation if the SHA-256 of its relative name says so, so the split of a file is the
    same on every machine whose Python ships it.

    Raises
    ------
    JobError
        This Python ships no library sources.
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

    Of its blocks of 4096 bytes, the twentieth with the smallest SHA-256, at least one, is for validation.

    Raises
    ------
    JobError
        The file is missing, unreadable, or of less than two blocks.
    """
    try:
        path = path.resolve(strict=True)
        stat = path.stat()
        return _file_corpus(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise JobError(f"the text file {path} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=1)
def _file_corpus(path: Path, modified_ns: int, size: int) -> Corpus:
    # The two last arguments key the cache: a file that has changed is read again.
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
