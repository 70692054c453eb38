"""Where checkpoints are kept: `Place`, and `Folder` for those on this machine's disk."""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from farflung.client.output.checkpoints.contents import stored_file
from farflung.client.output.checkpoints.record import FILES, RECORD, CheckpointRecord, StoredFile
from farflung.errors import CheckpointError
from farflung.files import sync

OURS = frozenset((RECORD, *FILES))
_STEP = re.compile(r"0|[1-9]\d{0,17}")


class Place(ABC):
    """Checkpoints by step, each a folder with `checkpoint.json`; without that file it does not count.

    Methods raise `OSError` if the place refuses or cannot be reached, `CheckpointError` if what is there is
    damaged or not ours. At most one process may write to a place.
    """

    name: str
    """The folder or URL, for messages."""

    @abstractmethod
    def steps(self) -> list[int]:
        """The steps for which there is a folder, in ascending order."""

    @abstractmethod
    def read_record(self, step: int) -> bytes:
        """The bytes of `checkpoint.json`; FileNotFoundError if there is none."""

    @abstractmethod
    def sizes(self, step: int) -> dict[str, int]:
        """The files of a checkpoint and their sizes in bytes."""

    @abstractmethod
    def begin(self, step: int) -> Path:
        """Remove what broken-off saves have left; returns an empty folder of this machine to write into."""

    @abstractmethod
    def publish(self, folder: Path, step: int) -> None:
        """Make the files of that folder the checkpoint of a step: all of them at once, even if killed."""

    @abstractmethod
    def remove(self, step: int) -> None:
        """Delete a checkpoint; if killed meanwhile, what is left does not count."""

    @contextmanager
    @abstractmethod
    def verified(self, record: CheckpointRecord) -> Iterator[Path]:
        """A folder of this machine with the files of a checkpoint, after their digests were compared.

        Raises
        ------
        CheckpointError
            A file differs from what the record says.
        """

    def at(self, step: int) -> str:
        """Folder or URL of a checkpoint, for messages."""
        return f"{self.name}/{step}"


class Folder(Place):
    """Checkpoints in a folder on disk.

    A checkpoint is written to `.STEP.new`, and renamed to STEP when it is on disk. One that it replaces is
    `.STEP.old` in between, and counts as long as there is no STEP.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def steps(self) -> list[int]:
        return sorted({*self._steps("{}"), *self._steps(".{}.old")})

    def read_record(self, step: int) -> bytes:
        return (self._at(step) / RECORD).read_bytes()

    def sizes(self, step: int) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._at(step).iterdir() if path.is_file()}

    def begin(self, step: int) -> Path:
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync(self.path.parent)
        self._clear()
        if step in self._steps("{}") and not (self._named(step) / RECORD).exists():
            raise CheckpointError(
                f"{self._named(step)} has files that are not of a checkpoint: choose another place"
            )
        folder = self._named(step, ".{}.new")
        folder.mkdir()
        return folder

    def publish(self, folder: Path, step: int) -> None:
        sync(folder)
        target, old = self._named(step), self._named(step, ".{}.old")
        if target.exists():
            target.rename(old)
        folder.rename(target)
        sync(self.path)
        if old.exists():
            _delete(old)

    def remove(self, step: int) -> None:
        _delete(self._at(step))

    @contextmanager
    def verified(self, record: CheckpointRecord) -> Iterator[Path]:
        folder = self._at(record.step)
        for name, expected in record.files.items():
            try:
                found = stored_file(folder / name)
            except OSError as error:  # a bad sector, say: an older checkpoint may do
                raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}") from None
            require_equal(folder / name, found, expected)
        yield folder

    def _clear(self) -> None:
        """Remove leftovers; a checkpoint that was being replaced gets its name back."""
        for step in self._steps(".{}.new"):
            discard(self._named(step, ".{}.new"))
        for step in self._steps(".{}.old"):
            old = self._named(step, ".{}.old")
            if self._named(step).exists():
                _delete(old)
            else:
                old.rename(self._named(step))
        for step in self._steps("{}"):
            names = {path.name for path in self._named(step).iterdir()}
            if RECORD not in names and names <= OURS:
                _delete(self._named(step))

    def _named(self, step: int, form: str = "{}") -> Path:
        return self.path / form.format(step)

    def _at(self, step: int) -> Path:
        named = self._named(step)
        return named if named.is_dir() else self._named(step, ".{}.old")

    def _steps(self, form: str) -> list[int]:
        """The steps for which there is a folder with a name of this form."""
        before, after = form.split("{}")
        if not self.path.is_dir():
            return []
        names = (path.name for path in self.path.iterdir() if path.is_dir())
        return steps_in(
            name[len(before) :].removesuffix(after)
            for name in names
            if name.startswith(before) and name.endswith(after)
        )


def steps_in(names: Iterator[str]) -> list[int]:
    """The names that are plain numbers, as numbers."""
    return sorted(int(name) for name in names if _STEP.fullmatch(name))


def require_equal(where: Path | str, found: StoredFile, expected: StoredFile) -> None:
    """Raise CheckpointError unless a file is as its checkpoint's record says."""
    if found.bytes != expected.bytes:
        raise CheckpointError(f"{where} has {found.bytes} bytes, expected {expected.bytes}: it is damaged")
    if found.sha256 != expected.sha256:
        raise CheckpointError(f"{where} is damaged: its SHA-256 differs from the one in {RECORD}")


def discard(folder: Path) -> None:
    """Delete the folder of a broken-off save, temporary files of safetensors included; it may be missing."""
    shutil.rmtree(folder, ignore_errors=True)


def _delete(folder: Path) -> None:
    """Delete a checkpoint's files, the record first, and the folder unless it holds other files."""
    for name in (RECORD, *FILES):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
