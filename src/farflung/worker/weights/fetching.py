"""Fetch base weights from the URLs that a job names, as far as this worker's owner allows.

Everything here blocks: call it on a thread. Each tensor is compared with its digest before it counts.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from farflung.errors import WeightsError
from farflung.protocol.sessions import MOST_TROUBLES, BasePiece, StoredAt
from farflung.weights.allowed import Allowed, shown
from farflung.weights.ranges import Ranges, open_ranges
from farflung.weights.widening import widen_in_place

MOST_TOGETHER = 2**26
"""Neighbours in a file are requested together, up to so many bytes or one tensor."""


class Wanted(NamedTuple):
    """A piece that is stored at a URL, and the memory that its bytes go to."""

    piece: BasePiece
    at: StoredAt
    memory: memoryview

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return len(self.memory) // (2 if self.at.widened else 1)

    @property
    def end(self) -> int:
        """The byte after its last one in the file."""
        return self.at.offset + self.bytes


class Fetching:
    """Fetches pieces from `files`; `troubles` are why some did not come, in one line each.

    `came` is called with each piece whose memory has what its digest says. After `stop` no more is fetched.
    """

    def __init__(self, allowed: Allowed, files: Sequence[str], came: Callable[[Wanted], None]) -> None:
        self._allowed, self._files, self._came = allowed, files, came
        self._stopped = threading.Event()
        self.troubles: list[str] = []
        self.fetched_bytes = 0

    def stop(self) -> None:
        """Fetch nothing more; what is on its way still comes."""
        self._stopped.set()

    def fetch(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Fetch these pieces; returns those that did not come."""
        lacking: list[Wanted] = []
        for number in sorted({one.at.file for one in wanted}):
            of_file = sorted((one for one in wanted if one.at.file == number), key=lambda one: one.at.offset)
            lacking += self._fetch_file(self._files[number], of_file)
        return lacking

    def _fetch_file(self, url: str, wanted: Sequence[Wanted]) -> list[Wanted]:
        lacking: list[Wanted] = []
        done = 0
        try:
            ranges = open_ranges(url, self._allowed)
        except WeightsError as error:
            self._note(str(error))
            return [*wanted]
        try:
            for together in _neighbours(wanted):
                if self._stopped.is_set():
                    break
                lacking += self._fetch_together(ranges, url, together)
                done += len(together)
        except WeightsError as error:
            self._note(str(error))
        finally:
            ranges.close()
        return [*lacking, *wanted[done:]]

    def _fetch_together(self, ranges: Ranges, url: str, together: Sequence[Wanted]) -> list[Wanted]:
        """Fetch pieces that follow each other in a file; returns those whose bytes are not theirs."""
        # What will be widened in place is read into the second half of its memory.
        buffers = [one.memory[-one.bytes :] for one in together]
        ranges.read(together[0].at.offset, buffers)
        wrong: list[Wanted] = []
        for one in together:
            if one.at.widened:
                widen_in_place(one.memory, one.at.widened)
            if hashlib.sha256(one.memory).digest() == one.piece.sha256:
                self.fetched_bytes += len(one.memory)
                self._came(one)
                continue
            name = repr(one.piece.name[:60])
            self._note(f"{name} is not what the job says in {shown(url)}: its SHA-256 differs")
            wrong.append(one)
        return wrong

    def _note(self, trouble: str) -> None:
        if trouble not in self.troubles and len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(trouble)


def _neighbours(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Pieces in runs without gaps between them, each of a bounded size."""
    together: list[Wanted] = []
    for one in wanted:
        fits = together and one.at.offset == together[-1].end
        if fits and one.end - together[0].at.offset <= MOST_TOGETHER:
            together.append(one)
            continue
        if together:
            yield together
        together = [one]
    if together:
        yield together
