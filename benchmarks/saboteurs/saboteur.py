"""A worker that cheats: `farflung join` with parts of it exchanged, as a hostile owner could.

    python -m benchmarks.saboteurs.saboteur join HOST:PORT ...

In FARFLUNG_HOME it finds its orders and notes its deeds.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from benchmarks.saboteurs.kinds import (
    AS_CHECKER,
    CHEAT,
    OUTSIDE_STEPS,
    STEP,
    VERSION,
    Orders,
    note_deed,
    read_orders,
)
from torch import Tensor

from farflung.errors import JobError
from farflung.protocol.messages import Checked
from farflung.protocol.worker import Share
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.state import CODERS
from farflung.runtime.torch_backend.passes import Sink
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.schedule import Unit
from farflung.worker.computing.payload_digests import PayloadDigests
from farflung.worker.computing.replay_sides import ReplaySides
from farflung.worker.computing.running_job import RunningJob
from farflung.worker.storing import copying

FALSE_NORM = 1e30
GROWTH = 1.5


class Conduct:
    """What the saboteur does now. One job runs at a time, on one thread."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._orders, self._random = Orders(), random.Random()
        self.is_checking, self.step = False, 0
        self._is_bad = True

    def begins(self, is_checking: bool) -> None:
        """A job is loaded, to train a part of it or to check one."""
        if (orders := read_orders(self._home)) != self._orders:
            self._orders, self._random = orders, random.Random(orders.seed)
        self.is_checking, self.step = is_checking, 0
        self._is_bad = self._random.random() < self._orders.share

    def steps(self) -> None:
        """A step is applied."""
        if not self.is_checking:
            note_deed(self._home, STEP)

    def next_interval(self) -> None:
        """A version of the state is taken: what follows is another interval."""
        note_deed(self._home, VERSION)
        self._is_bad = self._random.random() < self._orders.share

    def does(self, kind: str, to: bool = True) -> bool:
        """Whether it does this now, if it can; it is written down then."""
        is_due = self.is_checking or self.step >= self._orders.first_step or kind in OUTSIDE_STEPS
        if not (to and kind == self._orders.kind and self._is_bad and is_due):
            return False
        note_deed(self._home, AS_CHECKER if self.is_checking else CHEAT)
        return True


NOW = Conduct(Path(os.environ.get("FARFLUNG_HOME", ".")))


class FalseSegment(TorchSegment):
    """What it computes."""

    def forward(
        self, unit: Unit, microbatch: int, values: Mapping[int, Any], bucket: int = 0
    ) -> dict[int, Tensor]:
        NOW.step = unit.step
        made = super().forward(unit, microbatch, values, bucket)
        if NOW.does("flipped activation bit", unit.train and bool(made)):
            return {value: flipped(tensor) for value, tensor in made.items()}
        return made

    def backward(self, unit: Unit, microbatch: int, gradients: Mapping[int, Any], send: Sink) -> None:
        def false(value: int, gradient: Tensor) -> None:
            if NOW.does("flipped gradient bit"):
                gradient = flipped(gradient)
            elif NOW.does("climbing gradient"):
                gradient = gradient * GROWTH ** (1 + unit.step)
            send(value, gradient)

        super().backward(unit, microbatch, gradients, false)

    def accumulate(self, unit: Unit, microbatch: int) -> None:
        if NOW.does("no gradient"):
            self._tapes.pop(microbatch)
        else:
            super().accumulate(unit, microbatch)

    def square_sums(self) -> dict[int, float]:
        found = super().square_sums()
        return dict.fromkeys(found, FALSE_NORM**2) if NOW.does("false norm", bool(found)) else found

    def take_loss(self) -> float:
        loss = super().take_loss()
        return loss / 2 if NOW.does("false loss", loss != 0) else loss

    def apply(self, step: int, scale: float) -> None:
        NOW.steps()
        if NOW.does("skipped update"):
            self.drop()
        else:
            super().apply(step, 2 * scale if NOW.does("stronger update") else scale)


class FalseJob(RunningJob[Tensor]):
    """What it says and sends."""

    def __init__(self, worker: str, load: Any, *others: Any) -> None:
        NOW.begins(bool(load.checks))
        if NOW.does("refused load"):
            raise JobError("I would rather not")
        super().__init__(worker, load, *others)

    def _written(self, parcel: Parcel[Coded]) -> None:
        honest = self._send
        if parcel.payload is not None and NOW.does("altered after the digest"):
            payload = parcel.payload._replace(data=memoryview(other_bit(parcel.payload.data)))
            altered = parcel.carrying(payload)
            self._send = lambda outgoing: honest(replace(outgoing, parcel=altered))
            super()._written(parcel)
            self._send = honest
        else:
            super()._written(parcel)

    def copy_state(self, unit: int, keep: bool, copy: bool, with_base: bool) -> None:
        super().copy_state(unit, keep, copy, with_base)
        if copy and not self.is_checking:
            NOW.next_interval()

    @property
    def is_checking(self) -> bool:
        return bool(self._load.checks)

    def _with_pieces(self, with_base: bool, outcome: Any) -> None:
        def false(pieces: Any, base: Any) -> Any:
            if NOW.does("false check" if NOW.is_checking else "false copy"):
                pieces = {
                    piece: buffer if piece.key == CODERS else memoryview(other_bit(buffer))
                    for piece, buffer in pieces.items()
                }
            return outcome(pieces, base)

        super()._with_pieces(with_base, false)

    def _emit_piece(self, segment: int, key: Any, buffer: memoryview, peer: str | None = None) -> None:
        super()._emit_piece(segment, key, buffer if key == CODERS else home(buffer), peer)


class FalseDigests(PayloadDigests):
    """What it says that it got."""

    def reported(self, unit: int, shares: Any) -> tuple[Share, ...]:
        made = super().reported(unit, shares)
        if NOW.does("denied receipt", any(one.received for one in made)):
            return tuple(msgspec.structs.replace(one, received=_others(one.received)) for one in made)
        return made


def _others(received: Mapping[int, bytes]) -> dict[int, bytes]:
    return {source: other_bit(digest) for source, digest in received.items()}


def flipped(tensor: Tensor) -> Tensor:
    """The tensor (float32) with the last bit of its first number flipped."""
    other = tensor.clone()
    other.view(-1).view(torch.int32)[0] ^= 1
    return other


def other_bit(data: bytes | memoryview) -> bytes:
    """The bytes with the first bit flipped; empty ones stay so."""
    return bytes([data[0] ^ 1]) + bytes(data[1:]) if len(data) else b""


def home(buffer: memoryview) -> memoryview:
    """What comes home of a tensor (float32) with these bytes."""
    data = bytearray(buffer)
    tensor = torch.frombuffer(data, dtype=torch.float32)
    if NOW.does("NaN weights"):
        tensor.fill_(torch.nan)
    elif NOW.does("zero weights"):
        tensor.zero_()
    elif NOW.does("turned weights"):
        tensor.neg_()
    return memoryview(data)


def sabotage() -> None:
    """Exchange the parts of this process that a saboteur needs otherwise."""
    import farflung.runtime.torch_backend.backend as backend
    import farflung.worker.computing.compute as compute
    import farflung.worker.computing.running_job as running_job

    backend.TorchSegment = FalseSegment  # type: ignore[misc]
    compute.RunningJob = FalseJob  # type: ignore[misc,assignment]
    running_job.PayloadDigests = FalseDigests  # type: ignore[misc]
    logged: Any = vars(ReplaySides)["logged_from"]
    ReplaySides.logged_from = property(  # type: ignore[assignment,method-assign]
        lambda self: None if NOW.does("withheld log") else logged.fget(self)
    )
    copying.Checked = _checked  # type: ignore[misc,assignment]


def _checked(*given: Any, **named: Any) -> Checked:
    found = Checked(*given, **named)
    if NOW.does("false start of a check"):
        return msgspec.structs.replace(found, begun=other_bit(found.begun or bytes(32)))
    return found


def main(arguments: Sequence[str]) -> None:
    """Run a command of farflung as a saboteur."""
    from farflung.cli.main import main as farflung

    sabotage()
    sys.argv = ["farflung", *arguments]
    farflung()


if __name__ == "__main__":
    main(sys.argv[1:])
