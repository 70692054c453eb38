"""What a victim may be told next without refusing it: odd frames that keep a link alive for long.

A damaged frame ends its connection two times out of three, and the next one costs a TLS handshake. A course
knows from what was written what the victim is in the middle of, and draws frames that fit there with whatever
else may stand in them: other headers, sizes, pieces, orders, receipts.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from tests.fuzz.mutators import NUMBERS, Mutator
from tests.fuzz.victim import MOST_BYTES, SPOKEN_BYTES

from farflung.errors import ProtocolError
from farflung.protocol import messages
from farflung.transport.wire.frames import (
    Ack,
    Cancel,
    Chunk,
    Control,
    Credit,
    Frame,
    Hello,
    Open,
    Ping,
    Pong,
    encode,
)
from farflung.transport.wire.headers import MAXIMUM_STREAMS, DataHeader, ProbeHeader, Receipt

_LARGEST_PIECE = 3000
_TRIES = 8
_UNIONS: dict[str, Any] = {"control": messages.FromWorker, "data": messages.FromPeer}


@dataclass(frozen=True)
class Sample:
    """One valid session to draw from: its hello, what it says, and the headers of its data."""

    hello: Hello
    controls: list[bytes]
    headers: list[DataHeader]

    @classmethod
    def of(cls, frames: list[tuple[Frame, bytes]]) -> Sample | None:
        """The sample that recorded frames give; None if they give little to say."""
        hello = frames[0][0]
        if not isinstance(hello, Hello) or hello.kind not in _UNIONS or hello.role != "worker":
            return None  # unfinished messages of all viewers' links together soon break their limit
        whole = [payload for frame, payload in frames if isinstance(frame, Control) and not frame.offset]
        headers = [frame.header for frame, _ in frames if isinstance(frame, Open)]
        return cls(hello, whole, headers) if whole or headers else None


class Course:
    """The attacker's side of one link, after hello; the victim must take whatever `step` gives, in order."""

    def __init__(self, sample: Sample, random: Random) -> None:
        self._sample = sample
        self._random = random
        self._mutator = Mutator(random)
        self._open: dict[int, list[int]] = {}  # stream: received, total
        self._next_stream = 0
        self._credit = SPOKEN_BYTES
        self._rest = b""  # of a control message
        self._total = 0
        steps = {self._ping: 1, self._pong: 1, self._give_credit: 1, self._receipt: 1, self._control: 3}
        if sample.hello.kind == "data" and sample.headers:
            steps |= {self._opening: 3, self._chunk: 5, self._cancel: 1}
        self._steps, self._weights = list(steps), list(steps.values())

    def step(self) -> tuple[str, bytes]:
        """Another frame and its kind."""
        while True:
            (step,) = self._random.choices(self._steps, self._weights)
            if (frame := step()) is not None:
                return step.__name__.strip("_"), frame

    def _ping(self) -> bytes:
        return encode(Ping(self._number()))

    def _pong(self) -> bytes:
        return encode(Pong(self._number()))

    def _give_credit(self) -> bytes | None:
        if not self._credit:
            return None
        count = self._random.randint(1, min(self._credit, 20))
        self._credit -= count
        return encode(Credit(count))

    def _receipt(self) -> bytes:
        # One control message and one stream are all that the victim has ever sent.
        random = self._random
        missing = tuple(random.randrange(2**53) for _ in range(random.choice([0, 1, 5, 100])))
        parts = tuple(
            (random.randrange(2**53), random.randrange(2**53)) for _ in range(random.choice([0, 9]))
        )
        return encode(Ack(Receipt(random.randrange(2), random.randrange(2), missing, parts)))

    def _control(self) -> bytes | None:
        if not self._rest:
            said = self._said()
            if said is None:
                return None
            self._rest, self._total = said, len(said)
        offset = self._total - len(self._rest)
        size = self._random.choice([len(self._rest), self._random.randint(1, len(self._rest))])
        piece, self._rest = self._rest[:size], self._rest[size:]
        return encode(Control(offset, self._total), size) + piece

    def _said(self) -> bytes | None:
        """A control message that is another and yet may be said."""
        if not self._sample.controls:
            return None
        for _ in range(_TRIES):
            said = self._mutator.values(self._random.choice(self._sample.controls))
            try:
                messages.decode(said, _UNIONS[self._sample.hello.kind])
            except ProtocolError:
                continue
            return said
        return None

    def _opening(self) -> bytes | None:
        header = self._header()
        if header is None or len(self._open) >= MAXIMUM_STREAMS - 1:
            return None
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        size = self._piece(header.bytes)
        self._note(stream, size, header.bytes)
        frame = Open(stream, header, self._random.choice([0, 1, 2**53]))
        return encode(frame, size) + self._random.randbytes(size)

    def _header(self) -> DataHeader | None:
        for _ in range(_TRIES):
            told = self._mutator.values(msgspec.msgpack.encode(self._random.choice(self._sample.headers)))
            try:
                header = msgspec.msgpack.decode(told, type=DataHeader)
            except (msgspec.DecodeError, ValueError):
                continue
            if not isinstance(header, ProbeHeader) and header.bytes <= MOST_BYTES:
                return header
        return None

    def _chunk(self) -> bytes | None:
        if not self._open:
            return None
        stream = self._random.choice(list(self._open))
        received, total = self._open.pop(stream)
        size = self._piece(total - received)
        self._note(stream, received + size, total)
        return encode(Chunk(stream, received), size) + self._random.randbytes(size)

    def _cancel(self) -> bytes | None:
        if not self._open:
            return None
        stream = self._random.choice(list(self._open))
        received, total = self._open.pop(stream)
        # Of what was cancelled the rest might come: only where nothing does is the stream over at once.
        return encode(Cancel(stream, received)) if received < total else None

    def _note(self, stream: int, received: int, total: int) -> None:
        if received < total:
            self._open[stream] = [received, total]

    def _piece(self, most: int) -> int:
        return 0 if not most else self._random.randint(1, min(most, _LARGEST_PIECE))

    def _number(self) -> float:
        return self._random.choice([*NUMBERS, self._random.uniform(-1e9, 0)])
