"""`CheckpointStore`: save, find and load the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from farflung.client.output.checkpoints.contents import Checkpoint, Contents, read_contents, write_contents
from farflung.client.output.checkpoints.places import CheckpointPlace, Folder, discard
from farflung.client.output.checkpoints.record import RECORD, CheckpointRecord, decode_record
from farflung.errors import CheckpointError
from farflung.files import sync
from farflung.text import first_line, printable

KEPT = 2
"""How many checkpoints stay."""


class Found(NamedTuple):
    """The newest whole checkpoint, None if there is none, and why each newer one was skipped."""

    record: CheckpointRecord | None
    skipped: tuple[str, ...]


class CheckpointStore:
    """The checkpoints of one run, in a folder or an object store. Methods block: call them on a thread.

    Parameters
    ----------
    place
        Where they are kept.
    keep
        How many of them stay; at least 1.
    """

    def __init__(self, place: CheckpointPlace, keep: int = KEPT) -> None:
        if keep < 1:
            raise CheckpointError(f"at least 1 checkpoint must be kept, found {keep}")
        self._place = place
        self._keep = keep

    @classmethod
    def open(cls, where: str | Path, keep: int = KEPT, scratch: Path | None = None) -> CheckpointStore:
        """The store in a folder (a path or `file://`), or at any other URL that fsspec knows.

        For an object store, `scratch` is a folder of this machine for temporary files, which no other process
        uses; the system's own by default.

        Raises
        ------
        CheckpointError
            The URL needs a package that is not installed, is not known, or its store cannot be opened.
        """
        address = str(where)
        if isinstance(where, Path) or "://" not in address:
            return cls(Folder(Path(where)), keep)
        if address.startswith("file://"):
            return cls(Folder(Path(address.removeprefix("file://"))), keep)
        from farflung.client.output.checkpoints.object_store import (
            ObjectStore,
            without_credentials,
        )

        try:
            return cls(ObjectStore(address, scratch), keep)
        except OSError as error:
            raise CheckpointError(
                f"{without_credentials(address)} cannot be opened: {_reason(error)}"
            ) from error

    @property
    def name(self) -> str:
        """The folder or URL."""
        return self._place.name

    def save(self, record: CheckpointRecord, contents: Contents) -> CheckpointRecord:
        """Save the state after `record.step` steps; returns the record with the files in it.

        A kill at any moment leaves the earlier checkpoints, and this one whole or not at all. Once it is
        whole, all but the newest `keep` up to it are deleted, and so are those of later steps: the run went
        back behind them. If an object store has a checkpoint of this step, that one is deleted first.

        Raises
        ------
        CheckpointError
            The disk or the object store refuses, or there are checkpoints of another run. If only the
            deletion failed, the message says that this checkpoint is written.
        """
        try:
            self._require_own(record.run)
            complete = self._write(record, contents)
            self._whole(record.step)
        except (CheckpointError, OSError) as error:
            kept = "are kept" if self._place.replaces_at_once else "of other steps are kept"
            raise CheckpointError(
                f"the checkpoint of step {record.step} cannot be written to {self.name}: {_reason(error)};"
                f" those written before {kept}"
            ) from error
        try:
            self._prune(complete)
        except (CheckpointError, OSError) as error:
            raise CheckpointError(
                f"the checkpoint of step {record.step} is written to {self.name}, but older ones cannot be"
                f" deleted: {_reason(error)}"
            ) from error
        return complete

    def require_run(self, run: str) -> None:
        """Check that there are no checkpoints of another run than this one.

        Raises
        ------
        CheckpointError
            There are, or the place cannot be read.
        """
        with self._readable():
            try:
                self._require_own(run)
            except CheckpointError as error:
                raise CheckpointError(f"checkpoints cannot be kept in {self.name}: {error}") from None

    def require_writable(self) -> None:
        """Check, without writing, that checkpoints can be kept here; an object store shows that only later.

        Raises
        ------
        CheckpointError
            The path is no folder, or must not be written to.
        """
        try:
            self._place.require_writable()
        except CheckpointError as error:
            raise CheckpointError(
                f"checkpoints cannot be kept in {self.name}: {error}; choose another --checkpoint-to"
            ) from None

    def newest(self) -> Found:
        """The newest whole checkpoint: its record is valid, and each file has the size that it should have.

        Raises
        ------
        CheckpointError
            The place cannot be read.
        """
        skipped: list[str] = []
        with self._readable():
            for step in reversed(self._place.steps()):
                try:
                    return Found(self._whole(step), tuple(skipped))
                except CheckpointError as error:
                    skipped.append(str(error))
        return Found(None, tuple(skipped))

    def load(self, step: int | None = None) -> Checkpoint:
        """Load the checkpoint of a step, or the newest whole one, and compare the digests of its files.

        Raises
        ------
        CheckpointError
            There is none, or (with `step`) it is damaged; the message says what was found.
        """
        if step is not None:
            with self._readable():
                return self._load(step, ())
        checkpoint, skipped = self.load_newest()
        if checkpoint is None:
            found = "; ".join(skipped) or "it is empty or missing"
            raise CheckpointError(f"{self.name} has no whole checkpoint: {found}")
        return checkpoint

    def load_newest(self, above: int = -1) -> tuple[Checkpoint | None, tuple[str, ...]]:
        """The newest whole checkpoint of a step above that one, if any, and why each newer one was skipped.

        Raises
        ------
        CheckpointError
            The place cannot be read.
        """
        skipped: list[str] = []
        with self._readable():
            for step in reversed(self._place.steps()):
                if step <= above:
                    break
                try:
                    return self._load(step, tuple(skipped)), tuple(skipped)
                except CheckpointError as error:
                    skipped.append(str(error))
        return None, tuple(skipped)

    def _write(self, record: CheckpointRecord, contents: Contents) -> CheckpointRecord:
        folder = self._place.begin(record)
        try:
            files = write_contents(folder, contents, record.step)
            complete = msgspec.structs.replace(record, files=files)
            (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(complete)) + b"\n")
            sync(folder / RECORD)
            self._place.publish(folder, complete)
        finally:
            discard(folder)
        return complete

    def _load(self, step: int, skipped: tuple[str, ...]) -> Checkpoint:
        record = self._whole(step)
        with self._place.verified(record) as folder:
            return read_contents(folder, record, skipped)

    def _whole(self, step: int) -> CheckpointRecord:
        """The record of a checkpoint whose files have the right sizes."""
        where = self._place.at(step)
        try:
            record = decode_record(self._place.read_record(step), where, step)
        except FileNotFoundError:
            raise CheckpointError(f"{where} has no {RECORD}: it was not written to its end") from None
        try:
            sizes = self._place.sizes(step)
        except FileNotFoundError:
            raise CheckpointError(f"{where} was deleted meanwhile") from None
        for name, expected in record.files.items():
            if name not in sizes:
                raise CheckpointError(f"{where} lacks {name}")
            if sizes[name] != expected.bytes:
                raise CheckpointError(
                    f"{where}/{name} has {sizes[name]} bytes, expected {expected.bytes}: it is damaged"
                )
        return record

    def _records(self) -> Iterator[CheckpointRecord]:
        """Every record that can be read, newest first, whether or not its files are whole."""
        for step in reversed(self._place.steps()):
            with suppress(CheckpointError, FileNotFoundError):
                yield decode_record(self._place.read_record(step), self._place.at(step), step)

    def _require_own(self, run: str) -> None:
        for other in self._records():
            if other.run != run:
                raise CheckpointError(
                    f"it has checkpoints of another run ({printable(other.job)}, step {other.step}): resume"
                    " that run, or choose another place"
                )

    def _prune(self, newest: CheckpointRecord) -> None:
        """Delete what is not among the newest `keep` up to this one; foreign folders stay."""
        kept: list[int] = []
        for record in list(self._records()):
            if record.step <= newest.step and len(kept) < self._keep and self._is_whole(record.step):
                kept.append(record.step)
            else:
                self._place.remove(record)

    def _is_whole(self, step: int) -> bool:
        try:
            self._whole(step)
        except CheckpointError:
            return False
        return True

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"{self.name} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)
