"""A worker takes base weights from its disk, and asks for what it lacks; the state is whole either way."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest
from tests.support.web import answering
from tests.worker.loads import fresh, load

from farflung.errors import ProtocolError
from farflung.protocol.messages import Message
from farflung.protocol.sessions import BaseLacking, BaseList, BasePiece, StoredAt
from farflung.transport.wire.headers import SliceHeader
from farflung.weights.allowed import Allowed
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.weights.cache import WeightCache
from farflung.worker.weights.filling import BaseFilling

WEIGHT, BIAS = bytes(range(12)), b"bias"


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


LISTED = BaseList("job-1", 5, [BasePiece(1, "weight", sha256(WEIGHT)), BasePiece(1, "bias", sha256(BIAS))])


class Scene:
    """The filling of one worker, and what it said."""

    def __init__(self, cache: WeightCache | None, allowed: Allowed | None = None) -> None:
        self.receiver = StateReceiver(load(), [1], 10**6, fresh)
        self.said: list[Message] = []
        self.arrived = 0
        self.filling = BaseFilling(cache, allowed or Allowed(), self.said.append, self._filled)

    def _filled(self) -> None:
        self.arrived += self.receiver.full

    async def listed(self, base: BaseList = LISTED) -> BaseLacking:
        self.filling.begin("desk", load(), self.receiver, base)
        async with asyncio.timeout(20):
            while not self.said:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (said,) = self.said
        assert isinstance(said, BaseLacking)
        return said

    def sent(self, name: str, content: bytes) -> None:
        header = SliceHeader("job-1", 5, 1, name, 0, len(content), len(content), sha256(content))
        memory = self.receiver.opening("desk", header)
        assert memory is not None
        memory[:] = content
        self.receiver.complete(header)


def run(scene: Scene, work: Callable[[], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        await work()
        await scene.filling.close()

    asyncio.run(whole())


def cache(folder: Path) -> WeightCache:
    return WeightCache(folder, 10**6, lambda: 0)


def test_a_first_job_asks_for_everything_and_a_second_for_nothing(tmp_path: Path) -> None:
    first, second = Scene(cache(tmp_path)), Scene(cache(tmp_path))

    async def begin() -> None:
        assert (await first.listed()).pieces == [(1, "weight"), (1, "bias")]
        first.sent("weight", WEIGHT)
        first.sent("bias", BIAS)
        assert first.receiver.full and first.receiver.verify() is None and not first.arrived
        first.filling.keep()

    async def again() -> None:
        assert await second.listed() == BaseLacking("job-1", 5, [])
        assert second.arrived == 1 and second.receiver.verify() is None
        assert bytes(second.receiver.buffers[1, "weight"]) == WEIGHT

    run(first, begin)
    run(second, again)


def test_a_flipped_bit_on_the_disk_is_found_and_only_that_tensor_is_asked_for(tmp_path: Path) -> None:
    cache(tmp_path).keep(sha256(WEIGHT), memoryview(WEIGHT))
    cache(tmp_path).keep(sha256(BIAS), memoryview(BIAS))
    (tmp_path / "weights" / sha256(BIAS).hex()).write_bytes(b"biar")
    scene = Scene(cache(tmp_path))

    async def work() -> None:
        assert (await scene.listed()).pieces == [(1, "bias")]
        assert scene.arrived == 0
        scene.sent("bias", BIAS)
        assert scene.receiver.full and scene.receiver.verify() is None
        scene.filling.keep()

    run(scene, work)
    assert cache(tmp_path).read(sha256(BIAS), memoryview(bytearray(4)))


def test_a_worker_without_a_disk_asks_for_everything() -> None:
    scene = Scene(None)

    async def work() -> None:
        assert len((await scene.listed()).pieces) == 2
        scene.filling.keep()

    run(scene, work)


def test_what_came_damaged_is_not_kept(tmp_path: Path) -> None:
    scene = Scene(cache(tmp_path))

    async def work() -> None:
        await scene.listed()
        scene.sent("bias", BIAS)
        scene.sent("weight", WEIGHT)
        scene.receiver.buffers[1, "bias"][0] += 1
        assert "'bias' was damaged" in (scene.receiver.verify() or "")
        scene.filling.keep()

    run(scene, work)
    assert cache(tmp_path).taken_bytes == len(WEIGHT)


def test_a_server_that_holds_up_one_job_holds_up_no_later_one(tmp_path: Path) -> None:
    """The first server is asked and stays silent; the next attempt, on the same worker, has another."""
    asked = threading.Event()
    (tmp_path / "a").write_bytes(WEIGHT + BIAS)

    def silent(connection: socket.socket, request: bytes) -> None:
        asked.set()
        connection.recv(1)  # until the worker has gone

    at = [StoredAt(0, 0), StoredAt(0, len(WEIGHT))]
    pieces = [msgspec.structs.replace(one, at=where) for one, where in zip(LISTED.pieces, at, strict=True)]
    with answering(silent) as url:
        scene = Scene(None, Allowed.parse([url, f"file://{tmp_path}"]))

        async def work() -> None:
            first = StateReceiver(load(), [1], 10**6, fresh)
            scene.filling.begin("desk", load(), first, BaseList("job-1", 5, pieces, [f"{url}/a"]))
            assert await asyncio.to_thread(asked.wait, 60)
            scene.filling.end()
            scene.said.clear()
            base = BaseList("job-1", 5, pieces, [f"file://{tmp_path}/a"])
            scene.filling.begin("desk", load(), scene.receiver, base)
            async with asyncio.timeout(20):  # less than what silence is given
                while not scene.receiver.full:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert scene.receiver.verify() is None

        run(scene, work)


UNEXPECTED = r"listed .* which the plan does not expect"


@pytest.mark.parametrize(
    ("peer", "piece", "words"),
    [
        ("a", LISTED.pieces[0], UNEXPECTED),
        ("desk", BasePiece(0, "weight", bytes(32)), UNEXPECTED),
        ("desk", BasePiece(1, "other", bytes(32)), UNEXPECTED),
        ("desk", BasePiece(1, "weight", bytes(32), StoredAt(0, 0)), "in a file that it did not list"),
    ],
)
def test_pieces_that_the_plan_does_not_expect_are_refused(peer: str, piece: BasePiece, words: str) -> None:
    async def work() -> None:
        receiver = StateReceiver(load(), [1], 10**6, fresh)
        filling = BaseFilling(None, Allowed(), lambda message: None, lambda: None)
        with pytest.raises(ProtocolError, match=words):
            filling.begin(peer, load(), receiver, BaseList("job-1", 5, [piece]))
        await filling.close()

    asyncio.run(work())


def test_base_weights_are_listed_once_and_not_sent_unasked(tmp_path: Path) -> None:
    scene = Scene(cache(tmp_path))

    async def work() -> None:
        scene.filling.begin("desk", load(), scene.receiver, BaseList("job-1", 5, LISTED.pieces[:1]))
        with pytest.raises(ProtocolError, match="out of order"):
            scene.sent("weight", WEIGHT)
        with pytest.raises(ProtocolError, match="twice"):
            scene.filling.begin("desk", load(), scene.receiver, BaseList("job-1", 5, LISTED.pieces[1:]))

    run(scene, work)


def test_a_piece_may_not_be_listed_twice_nor_with_another_digest_than_it_is_sent_with() -> None:
    receiver = StateReceiver(load(), [1], 10**6, fresh)
    receiver.reserve("desk", 1, "weight", sha256(WEIGHT))
    with pytest.raises(ProtocolError, match="listed 'weight'"):
        receiver.reserve("desk", 1, "weight", sha256(WEIGHT))
    receiver.ask(1, "weight")
    with pytest.raises(ProtocolError, match="two digests"):
        receiver.opening("desk", SliceHeader("job-1", 5, 1, "weight", 0, 12, 12, sha256(BIAS)))
