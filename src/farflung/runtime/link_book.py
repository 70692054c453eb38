"""Keep track of a worker's links: which codec encodes which value, and how much was sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from farflung.errors import CodecError
from farflung.opdag.buckets import in_bucket
from farflung.opdag.form import Form
from farflung.opdag.segment import Segment
from farflung.plans import FEEDER, FP32_BYTES, LinkCodec, Plan, Sum
from farflung.plans.codec_pair import DENSE, CodecPair
from farflung.runtime.parcel import CodecSample, Coded, Parcel, Sent
from farflung.runtime.training import Training

EdgeKey: TypeAlias = tuple[int, int, int]  # producer segment, consumer segment, value
AnyParcel: TypeAlias = Parcel[memoryview] | Parcel[Coded]


def edge_key(parcel: AnyParcel) -> EdgeKey:
    """The source, target and value of a parcel; for a gradient, those of its value."""
    ends = (parcel.target, parcel.source) if parcel.gradient else (parcel.source, parcel.target)
    return (*ends, parcel.value)


class LinkBook:
    """The links of one worker in one attempt, with the codec pairs that the plan has for unit `first`.

    Codecs apply to floats that cross between workers and are codable by the plan, and to what sums of float32
    gradients send from site to site; all else is dense.

    Raises
    ------
    CodecError
        A link of the plan, or its sums, has a codec that is not in the job's codebook.
    """

    def __init__(
        self, worker: str, plan: Plan, training: Training, segments: Iterable[Segment], first: int = 0
    ) -> None:
        self._worker = worker
        self._workers = plan.seats()
        self._codebook = training.codecs
        self._numbers = {name: 1 + n for n, name in enumerate(training.codecs)} | {DENSE: 0}
        self._here = here = {segment.number: segment for segment in segments}
        self._batch = training.microbatch_size
        self.forms = _forms(plan, here, training.microbatch_size)
        self._sum_codec = plan.sum_codec
        self._sums = coded_sums(plan, here, training.microbatch_size)
        self._fp32_bytes = {
            (bucket, edge): form.elements * FP32_BYTES
            for bucket in range(training.buckets)
            for edge, form in _forms(plan, _sized(here, bucket), training.microbatch_size).items()
        }
        self._codec_pairs: dict[str, CodecPair] = {}
        self._sent: dict[str, Sent] = {}
        self._seconds: dict[str, float] = {}
        for later in plan.later:
            self._require_named(later.codecs)
        self._require_named(plan.codecs)
        if plan.sum_codec not in self._numbers:
            raise CodecError(f"sums use codec {plan.sum_codec!r}, which is not in the job's codebook")
        unit = training.units().at(first)
        self.set(plan.codecs if unit is None else plan.codecs_at(unit.step))

    def set(self, codecs: Sequence[LinkCodec]) -> None:
        """Set the links' codec pairs. Links that are not listed become dense; CodecError as above."""
        self._require_named(codecs)
        self._codec_pairs = {
            link.target: CodecPair.of(link.codec) for link in codecs if link.source == self._worker
        }

    def rename(self, plan: Plan) -> None:
        """Use the workers and sums of `plan`, which has the same segments; codec pairs stay those of these.

        Pipelines may be dropped, or be there again.
        """
        before, after = self._workers, plan.seats()
        names = {before[number]: name for number, name in after.items() if number in before}
        self._workers = after
        self._sums = coded_sums(plan, self._here, self._batch)
        self._codec_pairs = {names[target]: pair for target, pair in self._codec_pairs.items()}
        self.restart()

    def _require_named(self, codecs: Sequence[LinkCodec]) -> None:
        for link in codecs:
            for name in CodecPair.of(link.codec):
                if name not in self._numbers:
                    raise CodecError(
                        f"the link {link.source} -> {link.target} uses codec {name!r}, which is not in the"
                        " job's codebook"
                    )

    @property
    def sum_forms(self) -> list[Form]:
        """The forms of the sums of which this worker codes messages, for each of its segments."""
        return [form for _, form in self._sums.values()]

    def sum_form(self, parcel: AnyParcel) -> Form | None:
        """The form of what a sum sends from site to site; None of any other parcel."""
        for end in (parcel.source, parcel.target):
            if (known := self._sums.get((end, parcel.value))) is not None:
                one, form = known
                return form if one.crosses(parcel.source, parcel.target) else None
        return None

    def codec_for(self, parcel: AnyParcel) -> tuple[int, str]:
        """Number and name of the codec with which to encode a parcel; 0 is dense."""
        if self.sum_form(parcel) is not None:
            return self._numbers[self._sum_codec], self._sum_codec
        pair = self._codec_pairs.get(self._workers[parcel.target]) if edge_key(parcel) in self.forms else None
        name = DENSE if pair is None else pair.gradient if parcel.gradient else pair.activation
        return self._numbers[name], name

    def codec_of(self, parcel: AnyParcel, number: int) -> tuple[Form, str]:
        """Form and codec of a received parcel, by the codec's number in its frame; CodecError if invalid."""
        summed = self.sum_form(parcel)
        form = summed or self.forms.get(edge_key(parcel))
        is_known = 0 < number <= len(self._codebook) and not parcel.bucket
        if form is None or not is_known or (summed and self._codebook[number - 1] != self._sum_codec):
            raise CodecError(f"{self.describe(parcel)} has codec {number}, which it cannot have")
        return form, self._codebook[number - 1]

    def count(self, parcel: AnyParcel, payload_bytes: int, not_finite: bool = False) -> None:
        """Count an encoded payload, unless it goes to the feeder or to the segment that sends it."""
        if parcel.target in (FEEDER, parcel.source):
            return
        summed = self.sum_form(parcel)
        tensor_bytes = (
            summed.nbytes
            if summed
            else self._fp32_bytes.get((parcel.bucket, edge_key(parcel)), payload_bytes)
        )
        target = self._workers[parcel.target]
        before = self._sent.get(target, Sent(target, 0, 0))
        self._sent[target] = before._replace(
            tensor_bytes=before.tensor_bytes + tensor_bytes,
            payload_bytes=before.payload_bytes + payload_bytes,
            not_finite=before.not_finite + not_finite,
        )

    def add_coding_seconds(self, segment: int, seconds: float) -> None:
        """Add the time that codecs took for a parcel to or from that segment."""
        if segment == FEEDER:
            return
        peer = self._workers[segment]
        self._seconds[peer] = self._seconds.get(peer, 0.0) + seconds

    def note(self, parcel: AnyParcel, samples: Iterable[CodecSample]) -> None:
        """Record samples of an outgoing tensor; only the worst of each link is kept."""
        target = self._workers[parcel.target]
        before = self._sent.get(target, Sent(target, 0, 0))
        found = {(one.codec, one.gradient): one for one in before.samples}
        for one in samples:
            key = (one.codec, one.gradient)
            found[key] = one.worse(found[key]) if key in found else one
        self._sent[target] = before._replace(samples=tuple(found.values()))

    def take_sent(self) -> list[Sent]:
        """Return and reset the counts of what was encoded for each worker."""
        sent, self._sent = self._sent, {}
        return [one._replace(coding_seconds=self._seconds.pop(one.target, 0.0)) for one in sent.values()]

    def restart(self) -> None:
        """Forget the counts: what they count is done again."""
        self._sent, self._seconds = {}, {}

    def describe(self, parcel: AnyParcel) -> str:
        """Describe a parcel and its sender, for messages."""
        kind = "the gradient of value" if parcel.gradient else "value"
        peer = self.sender(parcel) or "the submitter"
        return f"{kind} {parcel.value} of microbatch {parcel.microbatch} from {peer}"

    def sender(self, parcel: AnyParcel) -> str | None:
        """The worker that a parcel comes from; None if the submitter sent it."""
        return self._workers.get(parcel.source)


class PlainLinks:
    """The links of a job without codecs: values are passed on unchanged, on the calling thread.

    Parameters
    ----------
    book
        Counts what is sent.
    read, written
        Called with each received parcel, and with each one to send.
    """

    def __init__(
        self,
        book: LinkBook,
        read: Callable[[Parcel[memoryview]], None],
        written: Callable[[Parcel[Coded]], None],
    ) -> None:
        self._book = book
        self._read, self._written = read, written

    def read(self, parcel: Parcel[Coded]) -> None:
        """Pass on a received parcel; CodecError if it is encoded."""
        coded = parcel.payload
        if coded is not None and coded.codec:
            self._book.codec_of(parcel, coded.codec)
        self._read(parcel.carrying(None if coded is None else coded.data))

    def write(self, parcel: Parcel[memoryview]) -> None:
        """Send a value to another worker or the feeder; its memory must not change any more."""
        data = parcel.payload
        if data is not None:
            self._book.count(parcel, len(data))
        self._written(parcel.carrying(None if data is None else Coded(0, data)))

    def finish(self, report: Callable[[tuple[Sent, ...]], None]) -> None:
        """Call `report` with what was sent in a unit."""
        report(tuple(self._book.take_sent()))

    def decided(self, unit: int, codecs: Sequence[LinkCodec] | None) -> None:
        """End a unit; CodecError if `codecs` names one."""
        if codecs is not None:
            self._book.set(codecs)

    def restart(self) -> None:
        """Forget what the current unit sent: it runs again."""
        self._book.restart()

    def rename(self, plan: Plan, anew: Collection[int] = ()) -> None:
        """Use the workers of `plan`, which has the same segments; there is nothing to begin `anew`."""
        self._book.rename(plan)

    def close(self) -> None:
        """Do nothing: no call is waiting."""


def coded_sums(
    plan: Plan, segments: Mapping[int, Segment], batch: int
) -> dict[tuple[int, int], tuple[Sum, Form]]:
    """The sums whose messages a codec writes, by head and value, for the heads among `segments`."""
    found: dict[tuple[int, int], tuple[Sum, Form]] = {}
    for one in plan.sums if plan.has_coded_sums else ():
        for head in one.heads if len(one.heads) > 1 else ():
            if head in segments:
                form = Form.of(segments[head].values[one.value], batch)
                if form.dtype == "float32":
                    found[head, one.value] = one, form
    return found


def _sized(segments: Mapping[int, Segment], bucket: int) -> dict[int, Segment]:
    return {number: in_bucket(segment, bucket) for number, segment in segments.items()}


def _forms(plan: Plan, segments: Mapping[int, Segment], batch: int) -> dict[EdgeKey, Form]:
    found: dict[EdgeKey, Form] = {}
    for edge in plan.edges:
        here = segments.get(edge.source) or segments.get(edge.target)
        if here is None or edge.source == FEEDER or not edge.is_codable:
            continue
        if plan.worker_of(edge.source) == plan.worker_of(edge.target):
            continue
        form = Form.of(here.values[edge.value], batch)
        if form.is_codable:
            found[edge.source, edge.target, edge.value] = form
    return found
