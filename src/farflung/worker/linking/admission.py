"""Check the header of every data message against the plan before memory is allocated for it."""

from __future__ import annotations

from collections.abc import Callable

from farflung.errors import CodecError, ProtocolError
from farflung.plans import FEEDER, Edge, Sum
from farflung.protocol.messages import Load
from farflung.schedule import UnitWindow
from farflung.transport.wire.headers import DENSE, ValueHeader

Key = tuple[int, int, int, int, bool]  # microbatch, source, target, value, gradient
Place = tuple[int, int]  # unit, microbatch
EdgeKey = tuple[int, int, int]  # producer segment (or the feeder), consumer segment, value


UNITS_A_STEP = 4
"""A step may be followed by two evaluations, of which a pipeline may run nothing, and by a merge. The feeder
passes over what a pipeline has no part in.
"""


class Admission:
    """The values and gradients that one worker expects in one attempt.

    Peers may be one unit ahead of this worker, the feeder as many as its own window allows. For each value,
    at most a window of microbatches (from the feeder: two windows) is accepted before the first of them is
    answered with its gradient. A gradient is accepted only for a value that was sent.

    Of units that this worker runs again (`Load.history`), everything may come at once, as it was asked for.
    """

    def __init__(self, worker: str, load: Load) -> None:
        self._load = load
        mine = set(load.plan.segments_of(worker))
        edges = [((edge.source, edge.target, edge.value), edge) for edge in load.plan.edges]
        self._values = {edge_key: edge for edge_key, edge in edges if edge.target in mine}
        self._gradients = {edge_key: edge for edge_key, edge in edges if edge.source in mine}
        self._senders = {**load.plan.seats(), FEEDER: load.submitter}
        self._units = UnitWindow(load.training.units(), load.unit)
        self._live_from = load.unit + len(load.history)
        self._longest = _longest(load.training.codecs)
        self._sum_codec = _number_of(load.plan.sum_codec, load.training.codecs[: len(self._longest)])
        self._sums = {
            (segment, one.value): one
            for one in load.plan.sums
            for segment in one.holders()
            if segment in mine
        }
        self._seen: dict[int, set[Key]] = {}
        self._unanswered: dict[EdgeKey, set[Place]] = {edge_key: set() for edge_key in self._values}
        self._sent: dict[EdgeKey, set[Place]] = {edge_key: set() for edge_key in self._gradients}

    def admit(self, peer: str, header: ValueHeader) -> bool:
        """Whether to receive the payload; false if its attempt or unit is over.

        Raises
        ------
        ProtocolError
            The plan does not allow `peer` to send this, or not now, or it was received before.
        """
        load = self._load
        if header.job != load.job or header.attempt < load.attempt or header.unit < self._units.current:
            return False
        if one := self._sums.get((header.target, header.value)):
            self._admit_sum(peer, header, one)
            return True
        edge = (self._gradients if header.gradient else self._values).get(_edge_key(header))
        if edge is None or self._senders[header.source] != peer or header.attempt != load.attempt:
            raise ProtocolError(f"{peer} sent value {header.value}, which it does not send in the plan")
        self._check_place(peer, header)
        self._check_size(peer, header, edge)
        self._check_window(peer, header)
        self._record(peer, header)
        return True

    def _admit_sum(self, peer: str, header: ValueHeader, one: Sum) -> None:
        """Check a part of a sum, on its way to a head or the owner, or the sum on its way back."""
        up, down = (header.source, header.target) if header.gradient else (header.target, header.source)
        is_planned = up in one.holders() and up != down and one.head_of(up) == down
        if not is_planned or self._senders[header.source] != peer or header.attempt != self._load.attempt:
            raise ProtocolError(f"{peer} sent value {header.value}, which it does not send in the plan")
        unit = self._units.get(header.unit) if header.unit <= self._units.current + 1 else None
        if unit is None or not self._load.training.has_sums(unit) or header.microbatch:
            raise ProtocolError(f"{peer} sent a sum of unit {header.unit}, which is not due")
        if header.bucket:
            raise ProtocolError(f"{peer} sent a sum in bucket {header.bucket}, but sums have no length")
        is_codable = one.crosses(header.source, header.target) and not unit.alone
        coded = self._sum_codec if is_codable else DENSE
        is_coded = header.codec != DENSE and header.codec == coded
        if is_coded and 0 < header.bytes <= self._longest[coded - 1](one.bytes):
            self._record(peer, header)
            return
        if header.codec != DENSE or header.bytes not in (0, one.bytes):
            expected = one.bytes if coded == DENSE else f"at most {self._longest[coded - 1](one.bytes)}"
            raise ProtocolError(
                f"{peer} sent a sum with {header.bytes} bytes (codec {header.codec}), expected {expected}"
            )
        self._record(peer, header)

    def retract(self, header: ValueHeader) -> None:
        """Undo `admit` for a message that was cut off by a lost link: it will be sent again."""
        place = (header.unit, header.microbatch)
        self._seen.get(header.unit, set()).discard(_key(header))
        if header.unit < self._live_from or (header.target, header.value) in self._sums:
            return
        if header.gradient:
            self._sent[_edge_key(header)].add(place)
        else:
            self._unanswered[_edge_key(header)].discard(place)

    def on_sent(self, header: ValueHeader) -> None:
        """Note a sent message: a value, whose gradient may arrive now, or a gradient, which frees room."""
        if header.unit < self._live_from:
            return
        pending = self._unanswered if header.gradient else self._sent
        places = pending.get(_edge_key(header))
        if places is not None:
            (places.discard if header.gradient else places.add)((header.unit, header.microbatch))

    def advance(self) -> None:
        """Go on to the next unit, because the current one is decided."""
        self._seen.pop(self._units.current, None)
        self._units.advance()

    def _check_place(self, peer: str, header: ValueHeader) -> None:
        ahead = 1
        if header.source == FEEDER:
            ahead = UNITS_A_STEP * 2 * self._load.plan.window_of(header.target)
        unit = self._units.get(header.unit) if header.unit <= self._units.current + ahead else None
        end = header.source if header.gradient else header.target
        if unit is None or header.microbatch not in self._load.plan.microbatches_of(
            end, unit.microbatches, unit.alone
        ):
            raise ProtocolError(
                f"{peer} sent microbatch {header.microbatch} of unit {header.unit}, which is not due"
            )

    def _check_size(self, peer: str, header: ValueHeader, edge: Edge) -> None:
        sent = f"{peer} sent value {header.value} with {header.bytes} bytes (codec {header.codec}), "
        if header.bucket >= self._load.training.buckets:
            raise ProtocolError(f"{sent}in bucket {header.bucket}, which the job lacks")
        if header.bucket:  # exact sizes are checked with the programs' shapes, before a value is used
            if header.codec != DENSE or header.bytes > max(_sizes(edge, header.gradient)):
                raise ProtocolError(
                    f"{sent}expected at most {edge.bytes} (codec {DENSE}) in a shorter bucket"
                )
            return
        if header.codec == DENSE:
            if header.bytes not in _sizes(edge, header.gradient):
                raise ProtocolError(f"{sent}expected {edge.bytes} (codec {DENSE})")
            return
        is_coded = edge.differentiable if header.gradient else edge.is_codable
        known = len(self._longest) if is_coded else 0
        if header.codec > known:
            raise ProtocolError(f"{sent}expected at most codec {known} of that value")
        most = self._longest[header.codec - 1](edge.bytes)
        if not 0 < header.bytes <= most:
            raise ProtocolError(f"{sent}expected 1 to {most} bytes")

    def _check_window(self, peer: str, header: ValueHeader) -> None:
        edge_key, place = _edge_key(header), (header.unit, header.microbatch)
        if header.unit < self._live_from:
            return
        if header.gradient:
            if place not in self._sent[edge_key]:
                raise ProtocolError(
                    f"{peer} sent a gradient of value {header.value} twice, or without having received it"
                )
            self._sent[edge_key].discard(place)
            return
        limit = self._load.plan.window_of(header.target) * (2 if header.source == FEEDER else 1)
        if len(self._unanswered[edge_key]) >= limit and place not in self._unanswered[edge_key]:
            raise ProtocolError(f"{peer} sent value {header.value} more than {limit} microbatches ahead")
        self._unanswered[edge_key].add(place)

    def _record(self, peer: str, header: ValueHeader) -> None:
        seen = self._seen.setdefault(header.unit, set())
        key = _key(header)
        if key in seen:
            raise ProtocolError(f"{peer} sent value {header.value} of microbatch {header.microbatch} twice")
        seen.add(key)


def _key(header: ValueHeader) -> Key:
    return (header.microbatch, header.source, header.target, header.value, header.gradient)


def _edge_key(header: ValueHeader) -> EdgeKey:
    ends = (header.target, header.source) if header.gradient else (header.source, header.target)
    return (*ends, header.value)


def _number_of(codec: str, codebook: tuple[str, ...]) -> int:
    return 1 + codebook.index(codec) if codec in codebook else DENSE


def _longest(codecs: tuple[str, ...]) -> list[Callable[[int], int]]:
    """For each codec of the job, the longest payload as a function of the tensor's bytes."""
    if not codecs:
        return []
    from farflung.codec.catalogue import recipe  # with numpy, which an idle worker does without

    try:
        return [recipe(name).most_bytes for name in codecs]
    except CodecError:
        return []  # the job will be refused for this when its programs are verified


def _sizes(edge: Edge, gradient: bool) -> tuple[int, ...]:
    if not gradient:
        return (edge.bytes,)
    return (0, edge.bytes) if edge.differentiable else (0,)
