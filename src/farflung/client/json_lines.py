"""A file of JSON rows that is whole after every append, and after one that failed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class JsonLines:
    """Appends rows to a new or empty file; each has left this process when `append` returns."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self.descriptor).st_size

    def append(self, row: bytes) -> None:
        """Write one row and its line end, or raise `OSError` and leave the file as it was."""
        line = row + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.write(self.descriptor, line[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
