"""A checker runs a share again beside the fleet, and finds the very bits that its owner sent and holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import torch
from tests.worker.replaying_fleet import Fleet, fleet, one_pass_at_a_time
from tests.worker.test_copy_store import PIECES

from farflung.protocol.copies import StateVersion
from farflung.protocol.worker import Share
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.parcel import Coded, Parcel
from farflung.runtime.state import StateKey
from farflung.runtime.torch_backend.segment import TorchSegment
from farflung.schedule import Unit
from farflung.worker.computing.outcomes import ShareReplayed
from farflung.worker.computing.payload_digests import PayloadDigests
from farflung.worker.storing.copy_format import Piece, copy_digest
from farflung.worker.storing.copy_store import CopyStore

__all__ = ["one_pass_at_a_time"]  # used by each test
OWNER = "worker-1"
OVER = 5

CASES = [
    ("gpt-dropout", AdamW(0.01), ""),
    ("batch-norm", SGD(0.1, momentum=0.9), ""),
    ("gpt", AdamW(0.01), "int8"),
    ("gpt", AdamW(0.01), "axes3/axes10-dithered"),
]


def differences(made: Fleet, found: ShareReplayed) -> list[int]:
    """The units in which a checker found something else than the members said."""
    segments = made.load.plan.segments_of(OWNER)
    return [
        one.unit
        for one in found.units
        if any(
            one.digests[segment] != made.history[one.unit].digests[segment]
            or one.received[segment] != made.history[one.unit].received[segment]
            for segment in segments
        )
    ]


def bits(pieces: dict[object, memoryview]) -> dict[object, bytes]:
    return {piece: bytes(buffer) for piece, buffer in pieces.items()}


@pytest.mark.cases(2)
@pytest.mark.parametrize(("name", "optimizer", "codec"), CASES)
@pytest.mark.parametrize("begins", [True, False])
def test_an_honest_share_is_found_again(name: str, optimizer: Optimizer, codec: str, begins: bool) -> None:
    with fleet(name, optimizer, codec, verify=1.0) as made:
        copied = None
        for unit in range(OVER):
            made.run(unit)
            if unit == 1 and not begins:
                copied = made.copy(unit, OWNER)[OWNER]
                made.members[OWNER].said.clear()
        after = made.copy(OVER - 1, OWNER)[OWNER]
        found = made.check(copied, OWNER, OVER)
        assert [one.unit for one in found.units] == list(range(0 if begins else 2, OVER))
        assert differences(made, found) == []
        assert all(one.received for one in found.units)
        assert bits(found.pieces | found.base) == bits(after.pieces)  # type: ignore[arg-type]


@pytest.mark.parametrize("cheat", ["no update", "a flipped bit"])
def test_a_cheat_is_found_where_it_happens(cheat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet("gpt", AdamW(0.01), verify=1.0) as made:
        with monkeypatch.context() as patch:
            cheats(patch, made, cheat)
            for unit in range(OVER):
                made.run(unit)
            made.copy(OVER - 1, OWNER)  # the last step is applied then
        found = made.check(None, OWNER, OVER)
        # What is computed of weights that lack an update differs in the next step.
        assert min(differences(made, found)) == (3 if cheat == "no update" else 2)


@pytest.mark.full
def test_who_never_updates_is_found_from_its_own_copy_which_has_no_optimizer_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No checker could begin with such a copy, so the share was not checked at all."""
    with fleet("gpt", AdamW(0.01), verify=1.0) as made:
        with monkeypatch.context() as patch:
            cheats(patch, made, "no update", steps=range(OVER))
            for unit in range(OVER):
                made.run(unit)
                if unit == 1:
                    copied = made.copy(unit, OWNER)[OWNER]
                    made.members[OWNER].said.clear()
            made.copy(OVER - 1, OWNER)
        assert not [piece for piece in copied.pieces if piece.key.slot]
        found = made.check(copied, OWNER, OVER)
        assert min(differences(made, found)) == 3


def cheats(patch: pytest.MonkeyPatch, made: Fleet, cheat: str, steps: Collection[int] = (2,)) -> None:
    """Let the owner's segments cheat in these steps."""
    mine = set(made.load.plan.segments_of(OWNER))
    apply, forward = TorchSegment.apply, TorchSegment.forward

    def none(self: TorchSegment, step: int, scale: float) -> None:
        if self.segment.number in mine and step in steps:
            self.drop()
        else:
            apply(self, step, scale)

    def flipped(
        self: TorchSegment, unit: Unit, microbatch: int, values: Mapping[int, torch.Tensor], bucket: int
    ) -> dict[int, torch.Tensor]:
        made = forward(self, unit, microbatch, values, bucket)
        if self.segment.number in mine and unit.step in steps:
            made = {name: tensor.clone() for name, tensor in made.items()}
            for tensor in made.values():
                tensor.view(-1).view(torch.int32)[0] ^= 1
        return made

    patch.setattr(TorchSegment, *{"no update": ("apply", none), "a flipped bit": ("forward", flipped)}[cheat])


def parcel(microbatch: int, data: bytes = b"data", source: int = 0, target: int = 1) -> Parcel[Coded]:
    return Parcel(3, microbatch, source, target, 7, False, Coded(0, memoryview(data)))


def test_both_ends_of_a_link_have_one_digest_in_whichever_order_payloads_come() -> None:
    sender, receiver = PayloadDigests([0]), PayloadDigests([1])
    for one in (parcel(0), parcel(1, b"more")):
        sender.note(one)
    for one in (parcel(1, b"more"), parcel(0)):
        receiver.note(one)
    (sent,) = sender.reported(3, [Share(0, True, 0.0)])
    (received,) = receiver.reported(3, [Share(1, True, 0.0)])
    assert sent.sent.keys() == {1} and received.received.keys() == {0}
    assert sent.sent[1] == received.received[0]
    receiver.note(parcel(0))
    receiver.note(parcel(1, b"mode"))
    assert receiver.reported(3, [Share(1, True, 0.0)])[0].received[0] != sent.sent[1]
    assert sender.reported(3, [Share(0, True, 0.0)])[0].sent == {}


def test_the_digest_of_a_payload_is_that_of_its_length_too() -> None:
    (sent,), (received,) = [
        noted(parcel(0)._replace(bucket=bucket)).reported(3, [Share(0, True, 0.0)]) for bucket in (0, 1)
    ]
    assert sent.sent[1] != received.sent[1]


def noted(one: Parcel[Coded]) -> PayloadDigests:
    digests = PayloadDigests([0])
    digests.note(one)
    return digests


def test_the_digest_of_a_copy_is_that_of_its_file(tmp_path: Path) -> None:
    store, version = CopyStore(tmp_path, 10**6), StateVersion(2, 7)
    rest = {Piece(3, StateKey("frozen")): memoryview(bytearray(b"base"))}
    alone = store.write("job-1", version, 3, PIECES)
    assert copy_digest("job-1", version, 3, PIECES, {}) == alone.sha256
    base = store.write_base("job-1", 3, rest)
    beside = store.write("job-1", version, 3, PIECES, base)
    assert copy_digest("job-1", version, 3, PIECES, rest) == beside.sha256 != alone.sha256
