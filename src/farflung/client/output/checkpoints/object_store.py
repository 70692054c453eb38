"""Checkpoints in an object store, through fsspec: S3, Google Cloud Storage, Azure and what else it knows.

An object store has no rename, so `checkpoint.json` is the mark: it is written last and deleted first. While
files of a step are written or deleted, `.farflung` beside them names the run, by which a later save finds
what a broken-off one has left.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farflung.client.output.checkpoints.places import (
    FOREIGN,
    CheckpointPlace,
    discard,
    require_equal,
    steps_in,
)
from farflung.client.output.checkpoints.record import FILES, RECORD, CheckpointRecord, StoredFile
from farflung.errors import CheckpointError, StoreUnknown
from farflung.file_systems import credentials_in, file_system, without_credentials
from farflung.text import first_line

PIECE_BYTES = 2**20
TEMPORARY = ".farflung-checkpoint-"
MARKER = ".farflung"


class ObjectStore(CheckpointPlace):
    """Checkpoints below a URL.

    Each passes through a temporary folder of this machine, both ways. It is in `scratch` if that is given;
    there the next save removes what a killed process left.

    Raises
    ------
    CheckpointError
        A package is missing, or the URL is of no known protocol.
    OSError
        A method raises it with one line if the store refuses or cannot be reached.
    """

    replaces_at_once = False

    def __init__(self, url: str, scratch: Path | None = None) -> None:
        self.name = without_credentials(url).rstrip("/")
        self._url = url
        self._scratch = scratch
        with self._guarded():
            try:
                self._files, root = file_system(url)
            except StoreUnknown as error:
                raise CheckpointError(str(error)) from None
        self._root = root.rstrip("/")

    def steps(self) -> list[int]:
        with self._guarded():
            return steps_in(entry for entry, _ in self._listed(self._root))

    def read_record(self, step: int) -> bytes:
        with self._guarded():
            return bytes(self._files.cat_file(self._key(step, RECORD)))

    def sizes(self, step: int) -> dict[str, int]:
        with self._guarded():
            return dict(self._listed(self._key(step)))

    def begin(self, record: CheckpointRecord) -> Path:
        with self._guarded():
            for step in self.steps():
                self._clear(step, record.run)
        if (names := self.sizes(record.step).keys()) and RECORD not in names:
            raise CheckpointError(f"{self.at(record.step)} {FOREIGN}")
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
            for left in self._scratch.glob(f"{TEMPORARY}*"):
                discard(left)
        return Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=self._scratch))

    def publish(self, folder: Path, record: CheckpointRecord) -> None:
        step = record.step
        with self._guarded():
            self._mark(record)
            self._delete(step, [RECORD])
            for name in FILES:
                if (folder / name).exists():
                    self._files.put_file(str(folder / name), self._key(step, name))
            self._delete(step, [name for name in FILES if not (folder / name).exists()])
            self._files.pipe_file(self._key(step, RECORD), (folder / RECORD).read_bytes())
            self._delete(step, [MARKER])

    def remove(self, record: CheckpointRecord) -> None:
        with self._guarded():
            self._mark(record)
            self._delete(record.step, [RECORD, *FILES, MARKER])

    @contextmanager
    def verified(self, record: CheckpointRecord) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=self._scratch) as name:
            for file, expected in record.files.items():
                found = self._download(record.step, file, Path(name) / file)
                require_equal(f"{self.at(record.step)}/{file}", found, expected)
            yield Path(name)

    def _download(self, step: int, name: str, target: Path) -> StoredFile:
        """Copy a file to this machine; returns its size and digest."""
        digest, size = hashlib.sha256(), 0
        try:
            with (
                self._guarded(),
                self._files.open(self._key(step, name), "rb") as source,
                target.open("wb") as file,
            ):
                while piece := source.read(PIECE_BYTES):
                    digest.update(piece)
                    size += file.write(piece)
        except FileNotFoundError:
            raise CheckpointError(f"{self.at(step)}/{name} was deleted meanwhile") from None
        return StoredFile(size, digest.hexdigest())

    def _mark(self, record: CheckpointRecord) -> None:
        """Say that the files of a step are being changed, and by which run."""
        self._files.makedirs(self._key(record.step), exist_ok=True)
        self._files.pipe_file(self._key(record.step, MARKER), record.run.encode())

    def _clear(self, step: int, run: str) -> None:
        """Delete what a broken-off save of this run has left; a whole checkpoint loses its marker only."""
        names = self.sizes(step).keys()
        if MARKER in names and self._files.cat_file(self._key(step, MARKER)) == run.encode():
            self._delete(step, [MARKER] if RECORD in names else [*FILES, MARKER])

    def _delete(self, step: int, names: list[str]) -> None:
        present = dict(self._listed(self._key(step)))
        for name in names:
            if name in present:
                self._files.rm_file(self._key(step, name))

    def _listed(self, key: str) -> Iterator[tuple[str, int]]:
        """Last part of the name and size of each object and folder below a key."""
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(key, detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            yield str(entry["name"]).rstrip("/").rpartition("/")[2], int(entry["size"] or 0)

    def _key(self, step: int, name: str = "") -> str:
        return "/".join(part for part in (self._root, str(step), name) if part)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Make an OSError of whatever a client of an object store raises; each has errors of its own."""
        try:
            yield
        except (CheckpointError, FileNotFoundError):
            raise
        except Exception as error:
            secret = credentials_in(self._url)
            line = first_line(error).replace(secret, "***") if secret else first_line(error)
            raise OSError(f"{type(error).__name__}: {line[:300]}") from error
