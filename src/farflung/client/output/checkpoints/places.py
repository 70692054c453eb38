"""Where checkpoints are kept: `CheckpointPlace`, and `Folder` for those on this machine's disk."""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from farflung.client.output.checkpoints.contents import stored_file
from farflung.client.output.checkpoints.record import FILES, RECORD, CheckpointRecord, StoredFile
from farflung.errors import CheckpointError
from farflung.files import make_folder, sync

FOREIGN = "has files that are not of a checkpoint: choose another place"

_STEP = re.compile(r"0|[1-9][0-9]{0,17}")
_HIDDEN = re.compile(rf"\.({_STEP.pattern})\.(new|old|gone)(?:\.[0-9]+)?")


class CheckpointPlace(ABC):
    """Checkpoints by step, each a folder with `checkpoint.json`; without that file it does not count.

    Methods raise `OSError` if the place refuses or cannot be reached, `CheckpointError` if what is there is
    damaged or not ours. At most one process may write to a place.
    """

    name: str
    """The folder or URL, for messages."""

    replaces_at_once: bool
    """Whether the checkpoint of a step stays until the one that replaces it is whole."""

    @abstractmethod
    def steps(self) -> list[int]:
        """The steps for which there is a folder, in ascending order."""

    @abstractmethod
    def read_record(self, step: int) -> bytes:
        """The bytes of `checkpoint.json`; FileNotFoundError if there is none."""

    @abstractmethod
    def sizes(self, step: int) -> dict[str, int]:
        """The files of a checkpoint and their sizes in bytes."""

    def require_writable(self) -> None:  # noqa: B027
        """Raise CheckpointError if it is known without writing that nothing can be written here."""

    @abstractmethod
    def begin(self, record: CheckpointRecord) -> Path:
        """Remove what broken-off saves have left; returns an empty folder of this machine to write into.

        Raises
        ------
        CheckpointError
            There are files of others where the checkpoint belongs.
        """

    @abstractmethod
    def publish(self, folder: Path, record: CheckpointRecord) -> None:
        """Make the files of that folder the checkpoint of a step: all of them at once, even if killed."""

    @abstractmethod
    def remove(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint; if killed meanwhile, the next save deletes what is left of it."""

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


class Folder(CheckpointPlace):
    """Checkpoints in a folder on disk.

    A checkpoint is written to `.STEP.new`, and renamed to STEP when it is on disk. One that it replaces is
    `.STEP.old` in between, and counts as long as there is no STEP. One that is to be deleted is renamed to
    `.STEP.gone` first. A number is added to a name that is taken. Only these hidden folders are cleared;
    files of others in them stay.
    """

    replaces_at_once = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    def steps(self) -> list[int]:
        replaced = (step for step, path in self._hidden("old") if (path / RECORD).exists())
        return sorted({*self._shown(), *replaced})

    def read_record(self, step: int) -> bytes:
        return (self._at(step) / RECORD).read_bytes()

    def sizes(self, step: int) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self._at(step).iterdir() if path.is_file()}

    def require_writable(self) -> None:
        path = self.path.absolute()
        found = next(one for one in (path, *path.parents) if one.exists())
        if not found.is_dir():
            raise CheckpointError(f"{found} is no folder")
        if not os.access(found, os.W_OK | os.X_OK):
            raise CheckpointError(f"{found} cannot be written to")

    def begin(self, record: CheckpointRecord) -> Path:
        make_folder(self.path)
        self._clear()
        named = self._named(record.step)
        if named.exists() and not (named / RECORD).exists():
            raise CheckpointError(f"{named} {FOREIGN}")
        folder = self._fresh(record.step, "new")
        folder.mkdir()
        return folder

    def publish(self, folder: Path, record: CheckpointRecord) -> None:
        sync(folder)
        target, old = self._named(record.step), self._fresh(record.step, "old")
        if target.exists():
            target.rename(old)
        folder.rename(target)
        sync(self.path)
        if old.exists():
            _delete(old)

    def remove(self, record: CheckpointRecord) -> None:
        gone = self._fresh(record.step, "gone")
        self._at(record.step).rename(gone)
        sync(self.path)
        _delete(gone)

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
        for _, path in self._hidden("new"):
            discard(path)
        for step, path in self._hidden("old"):
            if (path / RECORD).exists() and not self._named(step).exists():
                path.rename(self._named(step))
            else:
                _delete(path)
        for _, path in self._hidden("gone"):
            _delete(path)

    def _named(self, step: int) -> Path:
        return self.path / str(step)

    def _fresh(self, step: int, kind: str) -> Path:
        """A hidden name that is not taken."""
        name = f".{step}.{kind}"
        paths = (self.path / (f"{name}.{number}" if number else name) for number in count())
        return next(path for path in paths if not path.exists())

    def _at(self, step: int) -> Path:
        replaced = (path for known, path in self._hidden("old") if known == step and (path / RECORD).exists())
        named = self._named(step)
        return named if named.is_dir() else next(replaced, named)

    def _shown(self) -> list[int]:
        return steps_in(path.name for path in self._folders())

    def _hidden(self, kind: str) -> list[tuple[int, Path]]:
        """Step and path of each hidden folder of this kind."""
        matches = ((_HIDDEN.fullmatch(path.name), path) for path in self._folders())
        return [(int(match[1]), path) for match, path in matches if match and match[2] == kind]

    def _folders(self) -> list[Path]:
        return [path for path in self.path.iterdir() if path.is_dir()] if self.path.is_dir() else []


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
