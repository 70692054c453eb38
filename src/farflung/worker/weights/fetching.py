"""Fetch base weights from the URLs that a job names, as far as this worker's owner allows.

Everything here blocks: call it on a thread. Each tensor is compared with its digest before it counts.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from farflung.errors import WeightsError
from farflung.protocol.sessions import MOST_TROUBLES, BasePiece, StoredAt
from farflung.quantization import NotFiniteError, block_bytes, quantized_bytes
from farflung.text import first_line, printable
from farflung.weights.allowed import Allowed, shown
from farflung.weights.files import Reading
from farflung.weights.quantizing import item_bytes, quantize_stored
from farflung.weights.ranges import Ranges, open_ranges
from farflung.weights.widening import widen_in_place

log = logging.getLogger("farflung.worker")

MOST_TOGETHER = 2**26
"""Neighbours in a file are requested together, up to so many bytes or one tensor."""

QUANTIZED_AT_ONCE = 2**22
"""Values that are read before they are quantized, a multiple of a block: at most 16 MiB beside the state."""


class Wanted(NamedTuple):
    """A piece that is stored at a URL, and the memory that its bytes go to."""

    piece: BasePiece
    at: StoredAt
    memory: memoryview

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return self.how.stored_bytes(len(self.memory))

    @property
    def how(self) -> Reading:
        """How the bytes in the file are converted."""
        return Reading(self.at.widened, self.at.quantized)

    @property
    def is_sound(self) -> bool:
        """Whether its memory has a size that the job's claim about its bytes can give."""
        if self.at.quantized:
            return len(self.memory) % block_bytes(self.at.quantized) == 0
        return not self.at.widened or len(self.memory) % 4 == 0

    @property
    def end(self) -> int:
        """The byte after its last one in the file."""
        return self.at.offset + self.bytes


class Fetching:
    """Fetches pieces from `files`; `troubles` are why some did not come, in one line each.

    `on_fetched` is called with each piece whose memory has what its digest says.
    """

    def __init__(self, allowed: Allowed, files: Sequence[str], on_fetched: Callable[[Wanted], None]) -> None:
        self._allowed, self._files, self._on_fetched = allowed, files, on_fetched
        self._stopped = threading.Event()
        self._fetched: set[tuple[int, str]] = set()
        self.troubles: list[str] = []
        self.fetched_bytes = 0

    def stop(self) -> None:
        """Let `fetch` end soon: what is on its way is given up. Any thread may call this."""
        self._stopped.set()

    def fetch(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Fetch these pieces; returns those that did not come. It raises nothing, whatever a server sends."""
        sound = [one for one in wanted if self._is_sound(one)]
        for number in sorted({one.at.file for one in sound}):
            of_file = sorted((one for one in sound if one.at.file == number), key=lambda one: one.at.offset)
            url = self._files[number]
            try:
                self._fetch_file(url, of_file)
            except WeightsError as error:
                self._note(str(error))
            except Exception as error:  # the job must go on: its submitter has these pieces, too
                log.exception("fetching base weights failed")
                self._note(f"{shown(url)} cannot be read: {printable(first_line(error))}")
        return [one for one in wanted if _name(one) not in self._fetched]

    def _is_sound(self, one: Wanted) -> bool:
        if not one.is_sound:
            what = f"blocks of {one.at.quantized}" if one.at.quantized else "float32 values"
            self._note(f"{one.piece.name[:60]!r} has {len(one.memory)} bytes, which are no {what}")
        return one.is_sound

    def _fetch_file(self, url: str, wanted: Sequence[Wanted]) -> None:
        ranges = open_ranges(url, self._allowed, self._stopped.is_set)
        try:
            for together in _neighbours(wanted):
                if self._stopped.is_set():
                    break
                self._fetch_together(ranges, url, together)
        finally:
            ranges.close()

    def _fetch_together(self, ranges: Ranges, url: str, together: Sequence[Wanted]) -> None:
        """Fetch pieces that follow each other in a file."""
        if together[0].at.quantized:
            try:
                _read_quantized(ranges, together[0])
            except NotFiniteError as error:
                self._note(f"{together[0].piece.name[:60]!r} cannot be quantized: {error}")
                return
        else:
            ranges.read(together[0].at.offset, [one.memory[-one.bytes :] for one in together])
        for one in together:
            if one.at.widened and not one.at.quantized:
                widen_in_place(one.memory, one.at.widened)
            if hashlib.sha256(one.memory).digest() == one.piece.sha256:
                self.fetched_bytes += len(one.memory)
                self._fetched.add(_name(one))
                self._on_fetched(one)
                continue
            name = repr(one.piece.name[:60])
            self._note(f"{name} is not what the job says in {shown(url)}: its SHA-256 differs")

    def _note(self, trouble: str) -> None:
        if trouble not in self.troubles and len(self.troubles) < MOST_TROUBLES:
            self.troubles.append(trouble)


def _read_quantized(ranges: Ranges, one: Wanted) -> None:
    """Read floats and quantize them, a part at a time: they are several times the memory of the piece."""
    form, kind = one.at.quantized, one.how.kind
    assert form
    step = quantized_bytes(QUANTIZED_AT_ONCE, form)
    buffer = memoryview(bytearray(min(one.bytes, QUANTIZED_AT_ONCE * item_bytes(kind))))
    offset = one.at.offset
    for start in range(0, len(one.memory), step):
        out = one.memory[start : start + step]
        part = buffer[: one.how.stored_bytes(len(out))]
        ranges.read(offset, [part])
        quantize_stored(part, kind, form, out)
        offset += len(part)


def _name(wanted: Wanted) -> tuple[int, str]:
    return wanted.piece.segment, wanted.piece.name


def _neighbours(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    """Pieces in runs without gaps between them, each of a bounded size.

    What is to be quantized comes alone: it is not read into its own memory.
    """
    together: list[Wanted] = []
    for one in wanted:
        is_next = together and one.at.offset == together[-1].end
        is_alone = one.at.quantized or (together and together[-1].at.quantized)
        if is_next and not is_alone and one.end - together[0].at.offset <= MOST_TOGETHER:
            together.append(one)
            continue
        if together:
            yield together
        together = [one]
    if together:
        yield together
