"""Which data links count, over several attempts; the links are doubles that remember what was done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import msgspec
import pytest
from tests.worker.loads import MICROBATCHES, fresh, load

from farflung.errors import ProtocolError
from farflung.protocol.messages import Claim, FromPeer, Load, Pull, Welcome, decode, encode
from farflung.protocol.worker import PastUnit
from farflung.runtime.parcel import Coded, Parcel
from farflung.transport.link.ranges import Part, Parts
from farflung.transport.security.peer import Peer
from farflung.transport.wire.headers import DataHeader, Receipt, ValueHeader
from farflung.worker.computing.state_receiver import StateReceiver
from farflung.worker.linking.peers import Peers
from farflung.worker.linking.pending_links import MAX_PENDING_LINKS, MAX_PENDING_LINKS_PER_PEER

WELCOME = encode(Welcome("job-1", 5))
CLAIM = encode(Claim("job-1", 5))


class FakeLink:
    """What `Peers` needs of a link."""

    bytes_sent = state_bytes_sent = 0
    receipt = Receipt()
    parts: tuple[Part, ...] = ()
    reason: str | None = None

    def __init__(self, id: str, role: str = "worker") -> None:
        self.peer = Peer(id, role)  # type: ignore[arg-type]
        self.kind = "data"
        self.said: list[bytes] = []
        self.closed_for = ""
        self.cause = "closed"
        self.unfinished: list[DataHeader] = []
        self.posted: list[DataHeader] = []

    def send_control(self, message: bytes, on_ack: object = None) -> None:
        self.said.append(message)

    def post(self, header: DataHeader, buffer: memoryview, *callbacks: object) -> None:
        self.posted.append(header)

    def govern(self, governor: object) -> None:
        pass

    def resume_from(self, kept: Parts) -> None:
        pass

    def on_ack(self, receipt: Receipt) -> None:
        assert receipt == Receipt()

    def abandon(self, reason: str) -> None:
        self.reason = self.closed_for = reason

    async def close(self, reason: str) -> None:
        self.closed_for = reason


class Seen:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.linked: list[str] = []
        self.lost: list[tuple[str, str]] = []
        self.parted: list[str] = []

    def peer_linked(self, peer: str) -> None:
        self.linked.append(peer)

    def peer_disconnected(self, peer: str, reason: str) -> None:
        self.parted.append(peer)

    def peer_lost(self, peer: str, reason: str) -> None:
        self.lost.append((peer, reason))

    def state_arrived(self) -> None:
        raise AssertionError("nothing was sent")


def take(peers: Peers, job: Load) -> None:
    peers.admit("b", job, StateReceiver(job, [1], 10**6, fresh), frozenset({"a", "c", "desk"}))


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_a_link_that_is_early_waits_for_the_plan() -> None:
    async def work() -> None:
        seen = Seen()
        peers, early, stranger = Peers(seen, fresh), FakeLink("a"), FakeLink("x")
        peers.accept(early)  # type: ignore[arg-type]
        peers.accept(stranger)  # type: ignore[arg-type]
        peers.control(early, CLAIM)  # type: ignore[arg-type]
        peers.control(stranger, CLAIM)  # type: ignore[arg-type]
        assert not early.said
        take(peers, load())
        assert (early.said, stranger.said, seen.linked) == ([WELCOME], [], ["a"])

    run(work())


def test_a_dialled_link_counts_once_it_is_welcomed_and_never_for_a_later_attempt() -> None:
    async def work() -> None:
        seen = Seen()
        peers, first, second = Peers(seen, fresh), FakeLink("c"), FakeLink("c")
        take(peers, load(5))
        peers.dialled(first)  # type: ignore[arg-type]
        peers.dismiss("over")
        take(peers, load(6))
        (said,) = first.said
        claim = decode(said, FromPeer)
        assert (claim.job, claim.attempt, claim.number, claim.previous) == ("job-1", 5, 1, 0)
        with pytest.raises(ProtocolError, match="not dialled from here"):
            peers.control(first, WELCOME)  # type: ignore[arg-type]
        peers.dialled(second)  # type: ignore[arg-type]
        peers.control(second, encode(Welcome("job-1", 6)))  # type: ignore[arg-type]
        assert seen.linked == ["c"]
        await asyncio.sleep(0)
        assert first.closed_for == "over"

    run(work())


def test_nothing_is_taken_before_the_programs_passed() -> None:
    async def work() -> None:
        peers, link = Peers(Seen(), fresh), FakeLink("a")
        take(peers, load())
        peers.accept(link)  # type: ignore[arg-type]
        peers.control(link, CLAIM)  # type: ignore[arg-type]
        header = ValueHeader("job-1", 5, 0, 0, 0, 1, 1, False, 0, 32)
        with pytest.raises(ProtocolError, match="before this worker had loaded"):
            peers.opening(link, header)  # type: ignore[arg-type]
        peers.trust()
        memory = peers.opening(link, header)  # type: ignore[arg-type]
        assert memory is not None and len(memory) == 32

    run(work())


def test_a_holder_has_one_place_for_each_attempt() -> None:
    async def work() -> None:
        peers, older, newer, next_job = Peers(Seen(), fresh), FakeLink("x"), FakeLink("x"), FakeLink("x")
        for link, claim in ((older, CLAIM), (newer, CLAIM), (next_job, encode(Claim("job-2", 5)))):
            peers.accept(link)  # type: ignore[arg-type]
            peers.control(link, claim)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert "superseded" in older.closed_for and not newer.closed_for and not next_job.closed_for

    run(work())


def test_no_peer_can_use_all_the_room_for_waiting_links() -> None:
    async def work() -> None:
        peers = Peers(Seen(), fresh)
        rogues = [FakeLink("rogue") for _ in range(MAX_PENDING_LINKS + 1)]
        for rogue in rogues:
            peers.accept(rogue)  # type: ignore[arg-type]
        peers.accept(FakeLink("a"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert [rogue.closed_for for rogue in rogues[-MAX_PENDING_LINKS_PER_PEER:]] == [
            ""
        ] * MAX_PENDING_LINKS_PER_PEER
        assert all(rogue.closed_for for rogue in rogues[:-MAX_PENDING_LINKS_PER_PEER])

    run(work())


def test_a_link_for_the_next_job_is_not_welcomed_to_this_one() -> None:
    async def work() -> None:
        seen = Seen()
        peers, link = Peers(seen, fresh), FakeLink("a")
        take(peers, load())
        peers.accept(link)  # type: ignore[arg-type]
        peers.control(link, encode(Claim("job-2", 5)))  # type: ignore[arg-type]
        assert not link.said and not seen.linked
        with pytest.raises(ProtocolError, match="second claim"):
            peers.control(link, CLAIM)  # type: ignore[arg-type]

    run(work())


@pytest.mark.parametrize(("role", "kind"), [("viewer", "data"), ("broker", "data"), ("worker", "control")])
def test_only_workers_and_submitters_bring_data(role: str, kind: str) -> None:
    link = FakeLink("v", role)
    link.kind = kind
    with pytest.raises(ProtocolError, match="data links of workers and submitters"):
        Peers(Seen(), fresh).accept(link)  # type: ignore[arg-type]


def test_the_loss_of_a_link_in_use_is_reported() -> None:
    async def work() -> None:
        seen = Seen()
        peers, counted, waiting = Peers(seen, fresh), FakeLink("a"), FakeLink("c")
        take(peers, load())
        peers.accept(counted)  # type: ignore[arg-type]
        peers.control(counted, CLAIM)  # type: ignore[arg-type]
        peers.dialled(waiting)  # type: ignore[arg-type]
        peers.closed(counted, "reset")  # type: ignore[arg-type]
        peers.closed(waiting, "reset")  # type: ignore[arg-type]
        assert seen.lost == [("a", "reset"), ("c", "it did not welcome the link: reset")]

    run(work())


def test_a_session_goes_on_over_a_second_link() -> None:
    async def work() -> None:
        seen = Seen()
        peers, first, second = Peers(seen, fresh), FakeLink("a"), FakeLink("a")
        take(peers, load())
        peers.trust()
        peers.accept(first)  # type: ignore[arg-type]
        peers.control(first, CLAIM)  # type: ignore[arg-type]
        header = ValueHeader("job-1", 5, 0, 0, 0, 1, 1, False, 0, 32)
        assert peers.opening(first, header) is not None  # type: ignore[arg-type]
        first.unfinished, first.cause = [header], "network"
        peers.closed(first, "nothing heard")  # type: ignore[arg-type]
        assert (seen.parted, seen.lost) == (["a"], []) and not peers.is_linked("a")
        peers.send_parcel(Parcel(0, 0, 1, 0, 1, True, None), "a")
        peers.accept(second)  # type: ignore[arg-type]
        peers.control(second, encode(Claim("job-1", 5, number=2, previous=1)))  # type: ignore[arg-type]
        assert seen.linked == ["a", "a"] and peers.is_linked("a")
        assert [(sent.source, sent.gradient) for sent in second.posted] == [(1, True)]
        assert peers.opening(second, header) is not None  # type: ignore[arg-type]

    run(work())


def test_another_process_cannot_go_on_with_a_session() -> None:
    async def work() -> None:
        peers, first, second = Peers(Seen(), fresh), FakeLink("a"), FakeLink("a")
        take(peers, load())
        for link, session in ((first, "one"), (second, "two")):
            peers.accept(link)  # type: ignore[arg-type]
            claim = encode(Claim("job-1", 5, session, 1))
            if link is first:
                peers.control(link, claim)  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="worker a was restarted"):
            peers.control(second, claim)  # type: ignore[arg-type]

    run(work())


def test_a_second_dialled_link_takes_the_place_of_the_first() -> None:
    async def work() -> None:
        seen = Seen()
        peers, first, second = Peers(seen, fresh), FakeLink("c"), FakeLink("c")
        take(peers, load())
        for link in (first, second):
            peers.dialled(link)  # type: ignore[arg-type]
        assert "superseded" in first.closed_for
        with pytest.raises(ProtocolError, match="not dialled from here"):
            peers.control(first, WELCOME)  # type: ignore[arg-type]
        peers.control(second, WELCOME)  # type: ignore[arg-type]
        claims = [decode(link.said[0], FromPeer) for link in (first, second)]
        assert [claim.number for claim in claims] == [1, 2] and seen.linked == ["c"]

    run(work())


def test_a_peer_that_was_given_up_is_not_awaited_any_more() -> None:
    async def work() -> None:
        seen = Seen()
        peers, link = Peers(seen, fresh), FakeLink("c")
        take(peers, load())
        settled = peers.dialled(link)  # type: ignore[arg-type]
        peers.give_up("c")
        assert settled.is_set() and link.closed_for == "it was given up"
        peers.closed(link, "it hung up")  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="not dialled from here"):
            peers.control(link, WELCOME)  # type: ignore[arg-type]
        assert not seen.lost and not seen.parted

    run(work())


def value(unit: int, source: int = 1, target: int = 0, microbatch: int = 0) -> Parcel[Coded]:
    """The gradient of value 1, which worker b sends to a."""
    return Parcel(unit, microbatch, source, target, 1, True, Coded(0, memoryview(bytes(32))))


def linked(peers: Peers, id: str, attempt: int) -> FakeLink:
    link = FakeLink(id)
    peers.accept(link)  # type: ignore[arg-type]
    peers.control(link, encode(Claim("job-1", attempt)))  # type: ignore[arg-type]
    return link


def pull(unit: int, attempt: int = 6) -> bytes:
    return encode(Pull("job-1", attempt, unit))


def test_what_was_sent_is_sent_again_to_the_worker_that_took_a_place() -> None:
    async def work() -> None:
        peers = Peers(Seen(), fresh)
        take(peers, load(5))
        peers.trust()
        peers.replays.log_sent(1000)
        linked(peers, "a", 5)
        for unit in range(3):
            peers.send_parcel(value(unit), "a")
        peers.dismiss("job job-1 goes on in attempt 6")
        placements = [
            msgspec.structs.replace(p, workers=["d"] if p.worker == "a" else p.workers)
            for p in load().plan.placements
        ]
        plan = msgspec.structs.replace(load().plan, placements=placements)
        again = msgspec.structs.replace(load(6), plan=plan, unit=2, replayers=["d"])
        peers.admit("b", again, None, frozenset({"c", "d", "desk"}))
        assert peers.replays.serve(0)
        taker, other = linked(peers, "d", 6), linked(peers, "c", 6)
        peers.control(taker, pull(1, attempt=5))  # type: ignore[arg-type]
        assert not taker.posted
        for unit in (0, 1):
            peers.control(taker, pull(unit))  # type: ignore[arg-type]
        assert [(one.unit, one.attempt, one.target) for one in taker.posted] == [(0, 6, 0), (1, 6, 0)]
        for link, unit in ((taker, 2), (other, 1)):  # it runs now, and for a worker that does not ask
            with pytest.raises(ProtocolError, match=f"asks for unit {unit} again"):
                peers.control(link, pull(unit))  # type: ignore[arg-type]
        peers.replays.forget_sent(1)
        assert not peers.replays.serve(0) and peers.replays.serve(1)

    run(work())


def test_a_worker_that_runs_past_units_again_asks_for_them_and_sends_nothing() -> None:
    async def work() -> None:
        peers = Peers(Seen(), fresh)
        take(peers, msgspec.structs.replace(load(6), history=[PastUnit(1.0)] * 2))
        peers.trust()
        peers.replays.log_sent(1000)
        a, desk = linked(peers, "a", 6), FakeLink("desk", "submitter")
        asked = len(a.said)
        assert decoded(a) == []  # its own state is not there yet
        peers.begin_replay()
        assert decoded(a) == [0, 1]
        peers.accept(desk)  # type: ignore[arg-type]
        peers.control(desk, encode(Claim("job-1", 6)))  # type: ignore[arg-type]
        assert decoded(desk) == [0, 1] and asked == 1
        early = ValueHeader("job-1", 6, 0, 3, 0, 1, 1, False, 0, 32)  # all of a unit may come at once
        for microbatch in range(MICROBATCHES):
            header = msgspec.structs.replace(early, microbatch=microbatch)
            assert peers.opening(a, header) is not None  # type: ignore[arg-type]
        peers.send_parcel(value(0), "a")
        peers.advance_replay()
        peers.send_parcel(value(1), "a")
        assert not a.posted and peers.replays.logged_from == 0
        peers.advance_replay()
        peers.send_parcel(value(2), "a")
        assert [one.unit for one in a.posted] == [2]

    run(work())


def test_neighbours_that_run_past_units_again_send_each_other_what_they_compute_once_it_is_asked_for() -> (
    None
):
    async def work() -> None:
        peers = Peers(Seen(), fresh)
        take(peers, msgspec.structs.replace(load(6), history=[PastUnit(1.0)] * 3, replayers=["a", "b"]))
        peers.trust()
        peers.replays.log_sent(1)  # what waits is no part of the log
        a, c = linked(peers, "a", 6), linked(peers, "c", 6)
        peers.begin_replay()
        assert decoded(a) == decoded(c) == [0, 1]
        peers.send_parcel(value(0), "a")
        peers.send_parcel(value(0), "c")
        assert not a.posted  # it may not have loaded yet
        peers.control(a, pull(0))  # type: ignore[arg-type]
        peers.send_parcel(value(0, microbatch=1), "a")
        peers.send_parcel(value(1), "a")
        assert [(one.unit, one.microbatch) for one in a.posted] == [(0, 0), (0, 1)]
        peers.advance_replay()
        peers.control(a, pull(1))  # type: ignore[arg-type]
        assert [one.unit for one in a.posted] == [0, 0, 1] and not c.posted
        with pytest.raises(ProtocolError, match="asks for unit 3 again"):
            peers.control(a, pull(3))  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="asks for unit 1 again"):
            peers.control(c, pull(1))  # type: ignore[arg-type]

    run(work())


def decoded(link: FakeLink) -> list[int]:
    """The units that a link was asked for."""
    said = [decode(message, FromPeer) for message in link.said]
    return [message.unit for message in said if isinstance(message, Pull)]


def test_links_with_a_member_that_was_removed_close_and_none_is_accepted_until_it_is_allowed() -> None:
    async def work() -> None:
        peers = Peers(Seen(), fresh)
        linked, waiting, other = FakeLink("a"), FakeLink("a"), FakeLink("desk")
        take(peers, load())
        for link in (linked, other):
            peers.accept(link)  # type: ignore[arg-type]
            peers.control(link, CLAIM)  # type: ignore[arg-type]
        peers.accept(waiting)  # type: ignore[arg-type]
        assert {link.peer.id for link in peers.links} == {"a", "desk"}
        assert peers.expel({"a": "was removed", "x": "was removed"}) == ["a"]
        await asyncio.sleep(0)
        assert linked.closed_for == waiting.closed_for == "was removed" and not other.closed_for
        assert {link.peer.id for link in peers.links} == {"desk"}
        with pytest.raises(ProtocolError, match="a was removed"):
            peers.require_member("a")
        peers.allow("a")
        peers.require_member("a")
        with pytest.raises(ProtocolError, match="x was removed"):
            peers.require_member("x")
        peers.forget_removed()
        peers.require_member("x")

    run(work())
