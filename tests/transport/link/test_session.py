"""Sessions over links that are lost at any moment, with the product's own outboxes, inboxes and frames."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.links import feed, slice_header, value_header

from farflung.errors import ProtocolError
from farflung.transport.link import ranges
from farflung.transport.link.inbox import Inbox
from farflung.transport.link.outbox import Done, OnPartial, Outbox
from farflung.transport.link.ranges import Part, Parts
from farflung.transport.link.session import MAXIMUM_CONTROLS, Session
from farflung.transport.wire.frame_reader import FrameReader
from farflung.transport.wire.frames import Chunk, Control, Frame, Open, encode
from farflung.transport.wire.headers import DataHeader, Receipt

CHUNK_BYTES = 8
CLAIMS_WITHOUT_WELCOME = 1000


@dataclass
class Heard:
    """Everything that one side has been given, over all links."""

    controls: list[bytes] = field(default_factory=list)
    data: list[tuple[DataHeader, bytes]] = field(default_factory=list)

    def control(self, link: object, message: bytes) -> None:
        self.controls.append(message)

    def opening(self, link: object, header: DataHeader) -> memoryview:
        return memoryview(bytearray(header.bytes))

    def complete(self, link: object, header: DataHeader, buffer: memoryview) -> None:
        self.data.append((header, bytes(buffer)))


class End:
    """One end of a link without a socket: bytes wait in `wire` until the test carries them over."""

    def __init__(self, heard: Heard) -> None:
        self.guard = None
        self.reason: str | None = None
        self.outbox = Outbox()
        self.wire: list[bytes] = []
        self._inbox = Inbox(self, heard)  # type: ignore[arg-type]
        self._reader = FrameReader(self)

    def post(
        self,
        header: DataHeader,
        buffer: memoryview,
        done: Done | None,
        on_ack: Done | None,
        on_partial: OnPartial | None,
        start: int,
    ) -> None:
        if self.reason is None:
            self.outbox.post(header, buffer, done, on_ack, on_partial, start)
        elif done is not None:
            done()

    def send_control(self, message: bytes, on_ack: Done | None) -> None:
        if self.reason is None:
            self.outbox.post_control(memoryview(message), on_ack)

    def on_ack(self, receipt: Receipt) -> None:
        self.outbox.on_final_ack(receipt)

    @property
    def parts(self) -> list[Part]:
        return self._inbox.parts

    def resume_from(self, kept: Parts) -> None:
        self._inbox.saved_parts = kept

    @property
    def receipt(self) -> Receipt:
        return self._inbox.receipt

    def pump(self) -> None:
        """Write one chunk, or whatever is smaller."""
        batch = self.outbox.batch(CHUNK_BYTES)
        self.wire.append(b"".join(bytes(buffer) for buffer in batch.buffers))
        batch.left()

    def hear(self, data: bytes) -> None:
        feed(self._reader, data)

    def break_down(self) -> None:
        self.reason = "lost"
        self.outbox.clear()

    def begin(self, frame: Frame, size: int) -> memoryview | None:
        if isinstance(frame, Control):
            return self._inbox.begin_control(frame, size)
        if isinstance(frame, Open):
            return self._inbox.begin_open(frame, size)
        assert isinstance(frame, Chunk)
        return self._inbox.begin_chunk(frame, size)

    def end(self, frame: Frame, size: int) -> None:
        if isinstance(frame, Control):
            self._inbox.end_control(size)
        else:
            assert isinstance(frame, Open | Chunk)
            self._inbox.end_data(frame, size)


class Sides:
    """A dialler (0) and a listener (1), and the link between them."""

    def __init__(self) -> None:
        self.sessions = (Session("s"), Session("s"))
        self.heard = (Heard(), Heard())
        self.posted: tuple[Heard, Heard] = (Heard(), Heard())
        self.ends: tuple[End, End] | None = None

    def say(self, side: int, kind: int, size: int) -> None:
        """Post a control message (0), a gradient (1) or a slice (2)."""
        number = len(self.posted[side].controls) + len(self.posted[side].data)
        content = bytes((number + place) % 256 for place in range(size))
        if kind == 0:
            self.posted[side].controls.append(content)
            self.sessions[side].send_control(content)
            return
        header = value_header(size, True, number) if kind == 1 else slice_header(size, str(number))
        self.posted[side].data.append((header, content))
        self.sessions[side].post(header, memoryview(content))

    def lose(self, notices: bool) -> None:
        """The link breaks; with `notices` both know, otherwise the listener learns it from the next claim."""
        if self.ends is not None:
            self.ends[0].break_down()
            self.sessions[0].on_link_lost()
            if notices:
                self.ends[1].break_down()
                self.sessions[1].on_link_lost()
        self.ends = None

    def connect(self, welcome_arrives: bool) -> None:
        """A new link is claimed and welcomed, and the welcome may be lost with it."""
        self.lose(notices=False)
        dialler, listener = self.sessions
        ends = (End(self.heard[0]), End(self.heard[1]))
        number, previous = dialler.next_number(), dialler.number
        ours = dialler.receipt
        theirs = listener.exchange_receipts(number, previous, ours)
        listener.carry(ends[1], number)
        if welcome_arrives:
            dialler.exchange_receipts(number, previous, theirs)
            dialler.carry(ends[0], number)
            self.ends = ends

    def move(self, side: int, chunks: int) -> None:
        """Some chunks cross the link."""
        if self.ends is None:
            return
        for _ in range(chunks):
            self.ends[side].pump()
            self.ends[1 - side].hear(self.ends[side].wire.pop(0))

    def acknowledge(self, side: int) -> None:
        """One side says what has come."""
        if self.ends is not None:
            self.ends[1 - side].outbox.on_ack(self.ends[side].receipt)


def _ordered(found: list[tuple[DataHeader, bytes]]) -> list[tuple[DataHeader, bytes]]:
    return sorted(found, key=repr)


side = st.integers(0, 1)
action = st.one_of(
    st.tuples(st.just("say"), side, st.integers(0, 2), st.integers(0, 40)),
    st.tuples(st.just("move"), side, st.integers(1, 6)),
    st.tuples(st.just("acknowledge"), side),
    st.tuples(st.just("lose"), st.booleans()),
    st.tuples(st.just("connect"), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(action, max_size=60))
def test_each_message_arrives_once_whatever_happens_to_the_links(actions: list[tuple[object, ...]]) -> None:
    sides = Sides()
    for name, *arguments in actions:
        getattr(sides, str(name))(*arguments)
    sides.connect(True)
    for one in (0, 1):
        sides.move(one, 600)
        sides.acknowledge(1 - one)
    for one in (0, 1):
        assert sides.heard[1 - one].controls == sides.posted[one].controls  # in order
        assert _ordered(sides.heard[1 - one].data) == _ordered(sides.posted[one].data)
        assert sides.sessions[one].unacknowledged == sides.sessions[one].unacknowledged_bytes == 0


def test_only_what_is_missing_is_sent_again() -> None:
    sides = Sides()
    sides.connect(True)
    for size in (8, 8, 20):
        sides.say(0, 1, size)
    sides.move(0, 4)  # two whole, and two chunks of the third; nothing was acknowledged
    assert sides.sessions[0].unacknowledged_bytes == 36
    sides.lose(notices=True)
    sides.connect(True)
    assert sides.ends is not None
    assert len(sides.ends[0].outbox) == 1 and sides.sessions[0].unacknowledged_bytes == 20
    sides.move(0, 1)  # the last four bytes of the third
    assert sides.heard[1].data == sides.posted[0].data


def begun(sides: Sides) -> int:
    """Post a message of five chunks, and have three cross the link before it is lost."""
    sides.connect(True)
    sides.say(0, 2, 40)
    sides.move(0, 3)
    sides.lose(notices=True)
    return 40


def chunks_left(sides: Sides) -> int:
    """How many chunks cross until all has come."""
    for count in range(20):
        if not sides.sessions[0]._carrier.outbox:  # type: ignore[union-attr]
            return count
        sides.move(0, 1)
    raise AssertionError("it does not end")


def test_a_message_goes_on_where_it_was_cut_off_however_often() -> None:
    sides = Sides()
    begun(sides)
    sides.connect(welcome_arrives=False)
    sides.connect(True)
    sides.lose(notices=False)  # before anything of it came
    sides.connect(True)
    sides.move(0, 1)
    sides.lose(notices=True)
    sides.connect(True)
    assert chunks_left(sides) == 1 and sides.heard[1].data == sides.posted[0].data


def test_a_part_without_room_is_sent_again_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides()
    begun(sides)
    sides.connect(True)
    sides.move(0, 1)
    monkeypatch.setattr(ranges, "MAXIMUM_SAVED_BYTES", 39)
    sides.lose(notices=True)
    sides.connect(True)
    assert chunks_left(sides) == 5 and sides.heard[1].data == sides.posted[0].data


@pytest.mark.parametrize(("name", "start", "kept"), [("0", 25, 24), ("another", 8, 0)])
def test_a_message_that_goes_on_from_more_than_came_is_refused(name: str, start: int, kept: int) -> None:
    sides = Sides()
    total = begun(sides)
    sides.connect(True)
    assert sides.ends is not None
    lie = Open(0, slice_header(total, name), start=start)
    with pytest.raises(ProtocolError, match=f"from byte 0 or {kept}, found {start}"):
        sides.ends[1].hear(encode(lie, 1) + b"x")


def test_a_receipt_for_more_of_a_message_than_was_sent_is_refused() -> None:
    sides = Sides()
    begun(sides)
    lie = Receipt(opened=1, missing=(0,), parts=((0, 25),))
    with pytest.raises(ProtocolError, match="acknowledged 25 bytes of a message of which 24 were sent"):
        sides.sessions[0].exchange_receipts(2, 1, lie)


def test_a_message_that_waited_for_a_link_leaves_over_the_next_one() -> None:
    sides, left = Sides(), []
    sides.sessions[0].post(slice_header(8), memoryview(bytes(8)), lambda: left.append("left"))
    sides.connect(True)
    assert not left
    sides.move(0, 1)
    assert left == ["left"]
    sides.lose(notices=True)
    sides.connect(True)
    assert left == ["left"] and not sides.sessions[0].unacknowledged


def test_a_session_that_ends_calls_every_callback() -> None:
    sides, left = Sides(), []
    sides.sessions[0].post(slice_header(8), memoryview(bytes(8)), lambda: left.append("first"))
    sides.sessions[0].close()
    sides.sessions[0].post(slice_header(8), memoryview(bytes(8)), lambda: left.append("second"))
    assert left == ["first", "second"] and not sides.sessions[0].unacknowledged


@pytest.mark.parametrize(
    ("number", "previous", "receipt", "words"),
    [
        (1, 1, Receipt(), "expected a link later than number 1"),
        (2, 3, Receipt(), "found one for 3"),
        (2, 1, Receipt(controls=1), "acknowledged messages that were never sent"),
        (2, 1, Receipt(opened=1), "acknowledged messages that were never sent"),
    ],
)
def test_a_claim_that_cannot_be_true_is_refused(
    number: int, previous: int, receipt: Receipt, words: str
) -> None:
    sides = Sides()
    sides.connect(True)
    with pytest.raises(ProtocolError, match=words):
        sides.sessions[1].exchange_receipts(number, previous, receipt)


def test_a_peer_that_acknowledges_nothing_is_given_up() -> None:
    session = Session("s")
    for _ in range(MAXIMUM_CONTROLS):
        session.send_control(b"")
    with pytest.raises(ProtocolError, match="unacknowledged"):
        session.send_control(b"")


def test_claims_without_number_leave_two_receipts_at_most() -> None:
    """Whoever claims again and again, as if each welcome had been lost, fills no memory."""
    session, end = Session("s"), End(Heard())
    for number in range(1, CLAIMS_WITHOUT_WELCOME):
        assert session.exchange_receipts(number, 0, Receipt()) == Receipt()
        session.carry(end, number)
    assert len(session._receipts) == 1
    session.exchange_receipts(CLAIMS_WITHOUT_WELCOME, CLAIMS_WITHOUT_WELCOME - 1, Receipt())
    with pytest.raises(ProtocolError, match="found one for 0"):
        session.exchange_receipts(CLAIMS_WITHOUT_WELCOME + 1, 0, Receipt())
