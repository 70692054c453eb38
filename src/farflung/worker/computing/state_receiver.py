"""Receive the state of a job's segments: named slices, straight into the memory that the segments use.

The state is every owned parameter and buffer and, after the first step, the slots of what is trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from farflung.errors import CopyError, CopyUnfit, GraphError, ProtocolError
from farflung.protocol.messages import Load
from farflung.runtime.optimizers.slots import slot_bytes
from farflung.runtime.state import CODERS, Snapshot, StateKey
from farflung.text import and_more
from farflung.transport.wire.headers import SliceHeader
from farflung.worker.storing.copy_format import Piece

Key = tuple[int, str]  # segment, name
EMPTY = memoryview(bytearray())


class _Place(NamedTuple):
    segment: int
    key: StateKey


def _sizes(load: Load, segments: list[int]) -> dict[_Place, int]:
    """Bytes of everything that the segments own."""
    first = load.training.units().at(load.unit)
    is_updated = first is not None and first.step > 0
    found: dict[_Place, int] = {}
    for program in load.programs:
        if program.segment not in segments:
            continue
        trained = program.trained if is_updated else {}
        for name, size in program.owned.items():
            slots = _slots(load, name, trained[name], size) if name in trained else {}
            for slot, bytes_of_one in {"": size, **slots}.items():
                found[_Place(program.segment, StateKey(name, slot))] = bytes_of_one
    return found


def _slots(load: Load, name: str, shape: list[int], size: int) -> dict[str, int]:
    return slot_bytes(load.training.optimizer, name, shape, size)


def _by_name(sizes: Iterable[_Place]) -> dict[StateKey, list[_Place]]:
    """All places of each key; a buffer that several segments read has several."""
    found: dict[StateKey, list[_Place]] = {}
    for place in sizes:
        found.setdefault(place.key, []).append(place)
    return found


class StateReceiver:
    """Memory for everything that this worker's segments own, filled by slices.

    Pieces arrive in any order, slices of one piece in theirs. Use `buffers`, `take_slots` and `take_coders`
    only after `verify` has passed. `allocate` returns the memory for a piece; `memory_bytes` is the limit for
    all.
    """

    def __init__(
        self, load: Load, segments: list[int], memory_bytes: int, allocate: Callable[[int], memoryview]
    ) -> None:
        sizes = _sizes(load, segments)
        total = sum(sizes.values())
        if total > memory_bytes:
            raise GraphError(
                f"the segments' state takes {total} bytes, this worker offers {memory_bytes}: "
                "raise `farflung join --memory` or use more workers"
            )
        self._load = load
        self._allocate = allocate
        self._room = memory_bytes - total
        self._memory = {place: allocate(size) if size else EMPTY for place, size in sizes.items()}
        self._expected = dict.fromkeys(sizes, 0)
        self._retracted: dict[_Place, set[int]] = {place: set() for place in sizes}
        self._missing = {place: size for place, size in sizes.items() if size}
        learns_on = load.training.codecs and load.unit and not (load.sources or load.state_donors)
        seats = load.plan.seats()
        self._senders = {taker: seats.get(donor, "") for taker, donor in load.state_donors.items()}
        self._coders = _Place(min(segments), CODERS) if learns_on else None
        self._by_name = _by_name(sizes) if load.sources else None
        self._trained = {name for program in load.programs for name in program.trained}
        self._digests: dict[_Place, bytes] = {}
        self._filled: set[_Place] = set()
        self._is_verified = False
        self.size = total
        """Bytes of all tensors together."""
        self.buffers: dict[Key, memoryview] = {
            (segment, key.name): memory for (segment, key), memory in self._memory.items() if not key.slot
        }
        """The memory of parameters and buffers."""

    @property
    def full(self) -> bool:
        """Whether every byte has been received."""
        return not self._missing and (self._coders is None or self._coders in self._memory)

    def opening(self, peer: str, header: SliceHeader) -> memoryview | None:
        """The memory for one slice; None if it is of another attempt.

        Raises
        ------
        ProtocolError
            The peer is not to send it, the tensor is unknown, or the slice is not the tensor's next one.
        """
        load = self._load
        if header.job != load.job or header.attempt < load.attempt:
            return None
        place = _place_of(header)
        sender = self._senders.get(place.segment, load.submitter)
        if place == self._coders and peer == sender:
            self._expect_coders(place, header.total)
        buffer = self._memory.get(place)
        if peer != sender or buffer is None or header.total != len(buffer) or not header.bytes:
            raise ProtocolError(f"{peer} sent a slice of {place.key}, which the plan does not expect")
        is_due = header.offset == self._expected[place] or header.offset in self._retracted[place]
        if not is_due or header.offset + header.bytes > header.total:
            raise ProtocolError(f"{peer} sent a slice of {place.key} out of order")
        if self._digests.setdefault(place, header.sha256) != header.sha256:
            raise ProtocolError(f"{peer} sent {place.key} with two digests")
        self._retracted[place].discard(header.offset)
        self._expected[place] = max(self._expected[place], header.offset + header.bytes)
        return buffer[header.offset : header.offset + header.bytes]

    def _expect_coders(self, place: _Place, size: int) -> None:
        """Allocate the memory of the coders' state, whose size the first slice names."""
        if place in self._memory:
            return
        if size > self._room:
            raise ProtocolError(_no_room(place, size, self._room))
        self._memory[place] = self._allocate(size)
        self._expected[place], self._retracted[place] = 0, set()
        self._missing[place] = size

    def retract(self, header: SliceHeader) -> None:
        """Undo `opening` for a slice that was cut off by a lost link: it will be sent again."""
        self._retracted[_place_of(header)].add(header.offset)

    def complete(self, header: SliceHeader) -> None:
        """Note that a slice has been received completely."""
        place = _place_of(header)
        self._missing[place] -= header.bytes
        if not self._missing[place]:
            del self._missing[place]

    def reserve(self, peer: str, segment: int, name: str, sha256: bytes) -> memoryview:
        """The memory of a piece that this worker may have already; until `ask`, no slice of it is admitted.

        Raises
        ------
        ProtocolError
            The peer is not the submitter, or it sends or has named that piece, or the piece is unknown or
            trained.
        """
        place = _Place(segment, StateKey(name))
        is_due = place in self._missing and not self._expected[place] and place not in self._digests
        if peer != self._load.submitter or not is_due or name in self._trained:
            raise ProtocolError(f"{peer} listed {place.key}, which the plan does not expect")
        self._digests[place], self._expected[place] = sha256, self._missing[place]
        return self._memory[place]

    def ask(self, segment: int, name: str) -> None:
        """Admit slices of a piece that was reserved: this worker does not have it."""
        self._expected[_Place(segment, StateKey(name))] = 0

    def fill(self, segment: int, name: str) -> None:
        """Count a piece that was reserved as received: its memory has what its digest says."""
        place = _Place(segment, StateKey(name))
        self._filled.add(place)
        self._missing.pop(place, None)

    def place(self, piece: Piece, size: int) -> memoryview | None:
        """The memory for a piece that comes from a copy on disk, which is verified there.

        In a copy that was made on another plan, segments have other numbers. Then a piece goes to the segment
        that owns its name now; None if that is another worker's, or if the piece is the state of coders.
        Several segments may own a buffer that nothing changes: the first of them gets it, the others when
        `trust` is called, and later ones are passed over.

        Raises
        ------
        CopyUnfit
            The worker's share has no such piece, or has it already.
        CopyError
            This worker has no memory for the state of coders.
        """
        places = [_Place(*piece)] if self._by_name is None else self._by_name.get(piece.key, [])
        if not places:
            return None
        if places[0] == self._coders and size:
            if size > self._room:
                raise CopyError(_no_room(places[0], size, self._room))
            self._expect_coders(places[0], size)
        buffers = [self._memory[place] for place in places if place in self._memory]
        if not buffers or any(len(buffer) != size for buffer in buffers):
            raise CopyUnfit(f"it has {size} bytes of {piece.key}, which does not fit the program")
        if self._by_name is not None and size and places[0] not in self._missing:
            if piece.key.name in self._trained:
                raise CopyUnfit(f"another copy had {piece.key} before")
            return None
        for place in places:
            self._missing.pop(place, None)
        return buffers[0]

    @property
    def lacking(self) -> str:
        """What copies on disk did not have, in one line; empty if nothing is missing."""
        if not self._missing:
            return ""
        names = sorted(str(place.key) for place in self._missing)
        return f"the copies of the job's state lack {and_more(names, 3)}"

    def trust(self) -> None:
        """Take what `place` gave memory for as verified: the copy that it was read from is.

        A parameter of which the copy has no slot at all was never updated, and begins without any.
        """
        self._is_verified = True
        for first, *others in (self._by_name or {}).values():
            for other in others:
                self._memory[other][:] = self._memory[first]
        for place in self._never_updated():
            del self._memory[place], self._missing[place]

    def _never_updated(self) -> list[_Place]:
        """The slots that are missing of parameters that are there without any slot."""
        slots: dict[_Place, list[_Place]] = {}
        for place in self._memory:
            if place.key.slot and place != self._coders:
                slots.setdefault(_Place(place.segment, StateKey(place.key.name)), []).append(place)
        without = [of_one for one, of_one in slots.items() if one not in self._missing]
        return [place for of_one in without if self._missing.keys() >= {*of_one} for place in of_one]

    def verify(self) -> str | None:
        """Compare each tensor with its digest; returns the problem as text, or None. Blocks for seconds."""
        if self._is_verified:
            return None
        for place, buffer in self._memory.items():
            if place in self._filled:
                continue
            if len(buffer) and hashlib.sha256(buffer).digest() != self._digests.get(place):
                return f"{place.key} was damaged on the way (its SHA-256 differs)"
        return None

    def take_slots(self, segment: int) -> Snapshot:
        """The optimizer slots of a segment, whose memory is the caller's from now on."""
        places = [p for p in self._memory if p.segment == segment and p.key.slot and p != self._coders]
        return {place.key: self._memory.pop(place) for place in places}

    def take_coders(self) -> memoryview | None:
        """The state of the worker's coders; None if the attempt begins without one."""
        return None if self._coders is None else self._memory.pop(self._coders)


def _place_of(header: SliceHeader) -> _Place:
    return _Place(header.segment, StateKey(header.name, header.slot))


def _no_room(place: _Place, size: int, room: int) -> str:
    return f"{place.key} takes {size} bytes, this worker has {room} left for it"
