"""A job goes on from a version on workers' disks with its model cut in another way: state is found by name.

Real compute threads and real files of workers in one process.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
from tests.worker.loads import fresh
from tests.worker.loads import load as small_load
from tests.worker.replaying_fleet import STEPS, Fleet, Member, fleet, one_pass_at_a_time

from farflung.errors import CopyError
from farflung.protocol.copies import CopyLost, HeldCopy, StateVersion
from farflung.protocol.messages import Load, Message
from farflung.runtime.optimizers.declared import SGD, AdamW, Optimizer
from farflung.runtime.state import CODERS, StateKey
from farflung.transport.timeouts import Timeouts
from farflung.worker.computing.outcomes import StateCopied
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.events import Filled
from farflung.worker.storing.copy_format import Piece, Pieces
from farflung.worker.storing.copy_store import CopyStore
from farflung.worker.storing.copying import Copying

__all__ = ["one_pass_at_a_time"]  # used by each test
VERSION = StateVersion(5, 1)


def copies(of: Fleet, unit: int, store: CopyStore) -> dict[int, HeldCopy]:
    """The share of each member right after `unit`, on disk."""
    held = {}
    for name, member in of.members.items():
        member.thread.copy_state(member.attempt, unit, keep=False, copy=True, with_base=True)
        copied = member.all_of(StateCopied, 1)[0]
        share = min(member.load.plan.segments_of(name))
        base = store.write_base("job-1", share, copied.base) if copied.base else None
        held[share] = store.write("job-1", StateVersion(1, unit), share, copied.pieces, base)
    return held


def recut(of: Fleet, size: int, unit: int, store: CopyStore) -> None:
    """After `unit` the job goes on with its model in `size` parts."""
    held = copies(of, unit, store)
    of.close()
    before = of.load
    cut = of.cut(size, before.training)
    sources = {name: dict.fromkeys(_needed(before, cut, name), name) for name in cut.plan.workers()}
    of.load = msgspec.structs.replace(
        cut, attempt=2, unit=unit + 1, version=StateVersion(1, unit), sources=sources
    )
    empty = {key: bytes(len(data)) for key, data in of.owned(of.load).items()}
    of.members = {}
    for name in of.load.plan.workers():
        of.members[name] = member = Member(of, name, of.load, empty)
        for share in sources[name]:
            store.read(held[share], member.receiver.place)
        assert not member.receiver.lacking
        member.receiver.trust()
        member.thread.check_state(member.attempt, member.receiver)
        assert member.all_of(Filled, 1)
    for member in of.members.values():
        member.thread.begin(member.attempt)


def _needed(before: Load, after: Load, name: str) -> list[int]:
    """The shares that have something of what a member owns now."""
    mine = _names(after, name)
    return [
        min(before.plan.segments_of(owner))
        for owner in before.plan.workers()
        if not mine.isdisjoint(_names(before, owner))
    ]


def _names(load: Load, worker: str) -> set[str]:
    parts = load.plan.segments_of(worker)
    return {name for program in load.programs if program.segment in parts for name in program.owned}


def by_name(state: dict[tuple[int, str], bytes]) -> dict[str, bytes]:
    """The state without the segments' numbers, and without what codecs have learned."""
    return {key: data for (_, key), data in state.items() if key != str(CODERS)}


CASES = [
    ("gpt-tied", AdamW(0.01), "", 3, 2),
    pytest.param("gpt-tied", AdamW(0.01), "", 2, 3, marks=pytest.mark.full),
    pytest.param("batch-norm", SGD(0.1, momentum=0.9), "", 3, 2, marks=pytest.mark.full),
    ("batch-norm", SGD(0.1, momentum=0.9), "", 2, 3),
    ("gpt-dropout", AdamW(0.01), "", 3, 1),
    ("shared-buffer", AdamW(0.01), "", 3, 2),
    pytest.param("shared-buffer", AdamW(0.01), "", 2, 3, marks=pytest.mark.full),
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "optimizer", "codec", "before", "after"), CASES)
def test_a_job_in_other_parts_has_the_bits_of_one_that_was_not_disturbed(
    tmp_path: Path, name: str, optimizer: Optimizer, codec: str, before: int, after: int
) -> None:
    with (
        fleet(name, optimizer, codec, size=before) as undisturbed,
        fleet(name, optimizer, codec, size=before) as disturbed,
    ):
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(3):
            disturbed.run(unit)
        recut(disturbed, after, 2, CopyStore(tmp_path, 10**9))
        for unit in range(3, STEPS):
            disturbed.run(unit)
        assert disturbed.losses == undisturbed.losses
        assert by_name(disturbed.state()) == by_name(undisturbed.state())


@pytest.mark.full
def test_codecs_begin_anew_in_other_parts(tmp_path: Path) -> None:
    learns = "axes3/axes10-dithered"
    with fleet("gpt", AdamW(0.01), learns) as undisturbed, fleet("gpt", AdamW(0.01), learns) as disturbed:
        for unit in range(STEPS):
            undisturbed.run(unit)
        for unit in range(3):
            disturbed.run(unit)
        recut(disturbed, 2, 2, CopyStore(tmp_path, 10**9))
        for unit in range(3, STEPS):
            disturbed.run(unit)
        assert disturbed.losses[:3] == undisturbed.losses[:3]
        assert disturbed.losses[3:] == pytest.approx(undisturbed.losses[3:], rel=0.2)


def piece(segment: int, name: str, size: int, slot: str = "") -> Pieces:
    return {Piece(segment, StateKey(name, slot)): memoryview(bytearray(b"x" * size))}


def recut_load() -> Load:
    """Segments own `weight` with 12 bytes, which is trained, and the buffer `bias` with 4."""
    load = small_load()
    programs = [msgspec.structs.replace(one, trained={"weight": [3]}) for one in load.programs]
    sources = {"b": {0: "b", 1: "b"}}
    return msgspec.structs.replace(load, programs=programs, unit=0, version=VERSION, sources=sources)


def receiver(*segments: int) -> StateReceiver:
    """Of worker b, which has segment 1 if no others are named."""
    return StateReceiver(recut_load(), list(segments or (1,)), 10**6, fresh)


def reading(folder: Path, *shares: Pieces) -> Callable[[StateReceiver], None]:
    store = CopyStore(folder, 10**6)
    held = [store.write("job-1", VERSION, share, pieces) for share, pieces in enumerate(shares)]

    def read(into: StateReceiver) -> None:
        for copy in held:
            store.read(copy, into.place)

    return read


def test_pieces_are_found_by_name_and_others_are_passed_over(tmp_path: Path) -> None:
    one = receiver()
    first = piece(7, "weight", 12) | piece(7, "other", 5) | piece(7, "", 3, "coders")
    reading(tmp_path, first, piece(9, "bias", 4))(one)
    assert one.lacking == ""
    assert {key: bytes(data) for key, data in one.buffers.items()} == {
        (1, "weight"): b"x" * 12,
        (1, "bias"): b"x" * 4,
    }
    assert one.take_coders() is None


def test_what_no_copy_has_is_named(tmp_path: Path) -> None:
    one = receiver()
    reading(tmp_path, piece(7, "weight", 12))(one)
    assert one.lacking == "the copies of the job's state lack 'bias'"


@pytest.mark.parametrize(
    ("foreign", "words"),
    [
        (piece(7, "weight", 8), "it has 8 bytes of 'weight', which does not fit the program"),
        (piece(7, "bias", 5), "it has 5 bytes of 'bias', which does not fit the program"),
        (piece(7, "weight", 12), "another copy had 'weight' before"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused(tmp_path: Path, foreign: Pieces, words: str) -> None:
    with pytest.raises(CopyError, match=words):
        reading(tmp_path, piece(9, "bias", 4) | piece(9, "weight", 12), foreign)(receiver())


def test_each_segment_gets_a_buffer_that_several_segments_read(tmp_path: Path) -> None:
    load = recut_load()
    load.programs[2].owned.pop("weight")
    one = StateReceiver(load, [1, 2], 10**6, fresh)
    first = piece(7, "weight", 12) | piece(7, "bias", 4)
    reading(tmp_path, first | piece(8, "bias", 4), piece(9, "bias", 4))(one)
    one.trust()
    assert one.lacking == ""
    assert [bytes(one.buffers[segment, "bias"]) for segment in (1, 2)] == [b"xxxx"] * 2


def restored(store: CopyStore) -> tuple[bool | str, bytes, list[Message]]:
    """Whether worker b could read its copies or why not, the one it began with, and what the broker hears."""
    said: list[Message] = []

    async def scene() -> tuple[bool | str, bytes]:
        one = Copying("b", store, object(), said.append, Timeouts)  # type: ignore[arg-type]
        load = recut_load()
        one.begin(load)
        try:
            return await one.restore(load, receiver()), one.begun
        except CopyError as error:
            return str(error), one.begun
        finally:
            await one.close()

    return *asyncio.run(scene()), said


def test_an_intact_copy_that_does_not_fit_is_kept_and_the_job_refused(tmp_path: Path) -> None:
    store = CopyStore(tmp_path, 10**6)
    held = store.write("job-1", VERSION, 0, piece(7, "weight", 8))
    words = "share 0 of the job's state: it has 8 bytes of 'weight', which does not fit"
    found, begun, said = restored(store)
    assert isinstance(found, str) and found.startswith(words) and begun == held.sha256
    assert not said and store.held() == [held]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"[0,12]", b"[1,12]", "its header is damaged"),
        (b"[0,12]", b"[9,12]", "its header is damaged"),
        (b"xxxxxxxxxxxx", b"xxxxxxxx", "the file is too short"),
        (b"xxxxxxxxxxxx", b"xxxxxxxxxxxxxxxx", "the file is too long"),
    ],
)
def test_a_copy_whose_pieces_are_not_what_its_header_says_names_its_owner(
    tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    """Its digest is right: the owner made it so, lest a checker begin with it."""
    store = CopyStore(tmp_path, 10**6)
    path = store.path_of(whole := store.write("job-1", VERSION, 0, piece(7, "weight", 12)))
    made = path.read_bytes().replace(old, new)
    assert made != path.read_bytes()
    path.unlink()
    digest = hashlib.sha256(made).digest()
    arriving = store.receive(msgspec.structs.replace(whole, sha256=digest, bytes=len(made)))
    arriving.write(0, memoryview(made))
    arriving.verify()
    arriving.finish()
    (held,) = store.held()
    found, begun, said = restored(store)
    assert found == f"share 0 of the job's state: {words}" and begun == held.sha256
    assert not said and store.held() == [held]


def test_a_copy_that_could_not_be_read_once_is_kept_and_not_named_as_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CopyStore(tmp_path, 10**6)
    held = [
        store.write("job-1", VERSION, share, pieces)
        for share, pieces in enumerate((piece(7, "weight", 12), piece(9, "bias", 4)))
    ]
    failing, opening = [store.path_of(held[1])], Path.open

    def opened(path: Path, mode: str = "r") -> IO[Any]:
        if path in failing:
            failing.remove(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(path, mode)

    def find(job: str, version: StateVersion, share: int) -> HeldCopy:
        return held[share]  # without a look at the file, which takes the failure

    monkeypatch.setattr(store, "find", find)
    monkeypatch.setattr(Path, "open", opened)
    found, begun, said = restored(store)
    assert not failing and begun == b""
    assert found == "share 1 of the job's state: the copy cannot be read: Too many open files"
    assert not said and store.held() == held


def test_a_damaged_copy_is_lost_and_deleted(tmp_path: Path) -> None:
    store = CopyStore(tmp_path, 10**6)
    whole = store.write("job-1", VERSION, 0, piece(7, "weight", 12))
    damaged = store.write("job-1", VERSION, 1, piece(9, "bias", 4))
    path = store.path_of(damaged)
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    found, _, said = restored(store)
    reason = "the copy is damaged: its SHA-256 differs"
    assert found is False and said == [CopyLost("job-1", 5, VERSION, 1, reason)]
    assert store.held() == [whole]


@pytest.mark.full
def test_a_copy_that_is_gone_is_lost(tmp_path: Path) -> None:
    found, _, said = restored(CopyStore(tmp_path, 10**6))
    reason = "the copy is no longer on the disk"
    assert found is False and said == [CopyLost("job-1", 5, VERSION, 0, reason)]
