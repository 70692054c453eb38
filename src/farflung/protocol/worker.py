"""What a worker and the broker say to each other, in the order of a job."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans import LinkCodec, Plan
from farflung.plans.ability import Ability, Lacks
from farflung.plans.rung import MOST_CODECS, CodecName
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS, MOST_TFLOPS
from farflung.protocol.fields import MOST_COUNT, Addresses, Count, Id, Message, Name, Opset, Text
from farflung.runtime.parcel import MOST_ERROR
from farflung.runtime.training import Training


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker offers. `memory_bytes` is what its owner lets jobs use, `framework` what it runs,
    `lacks` the ops of the opset that it refuses.

    `tflops` is what it sustains in float32 matrix products, as measured by the worker when it started; 0 is
    unknown.
    """

    kind: Id
    name: Text
    cores: Count
    memory_bytes: Count
    framework: Text
    opset: Opset
    tflops: Annotated[float, Meta(ge=0, le=MOST_TFLOPS)] = 0.0
    lacks: Lacks = ()

    @property
    def ability(self) -> Ability:
        """What of a model it can run."""
        return Ability(self.opset.version, self.lacks, self.framework)


class HomeLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker's owner says of its line, which all of its links share; None: find out.

    Without `probes` nobody may ask the worker to send bytes only to measure a path.
    """

    up_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    down_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    probes: bool = True


class Register(Message, frozen=True):
    """First message of a worker: `addresses` (HOST:PORT) lead peers to it, `boot` is new per process.

    `relay_mbps` is what it carries for peers who cannot reach each other; 0 is nothing. `line` is what its
    owner says of it.
    """

    device: Device
    site: Text
    addresses: Addresses
    boot: Id
    relay_mbps: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    line: HomeLine = HomeLine()


class Registered(Message, frozen=True):
    """The broker admits the worker to the backup pool."""

    worker: Id


class Moved(Message, frozen=True):
    """A registered worker is to be found at other `addresses` now."""

    addresses: Addresses


class PeerMoved(Message, frozen=True):
    """To whom a job links to `worker`: it is to be found at these addresses from now on."""

    worker: Id
    addresses: Addresses


class SegmentProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment of the job as the OP-DAG wire format writes it.

    `owned` maps the parameters and buffers it owns to their sizes in bytes, so that a worker can take the
    state while it still verifies the program (and refuse both where they disagree).
    """

    segment: Count
    program: bytes
    owned: dict[Name, Count] = {}


class Load(Message, frozen=True):
    """Take these segments. `addresses` maps neighbours to HOST:PORT lists; dial those with a greater id."""

    job: Id
    attempt: Count
    plan: Plan
    training: Training
    programs: Annotated[list[SegmentProgram], Meta(max_length=100_000)]
    addresses: dict[Id, Addresses]
    submitter: Id


class Loaded(Message, frozen=True):
    """The worker has verified its segments, holds their whole state and is linked to its neighbours."""

    job: Id
    attempt: Count


class Refused(Message, frozen=True):
    """The worker will not run this job; `reason` is one line for the user."""

    job: Id
    attempt: Count
    reason: Text


class Begin(Message, frozen=True):
    """Every worker has loaded: run unit 0, then each next unit when the one before is decided."""

    job: Id
    attempt: Count


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment's part of a unit.

    `square_sum` is the float64 sum of squares over the gradients the segment owns, `finite` whether all of
    them (and its loss) are; `loss` is its float64 sum of w_m * loss_m (0.0 without the loss).
    """

    segment: Count
    square_sum: float
    finite: bool
    loss: float


class CodecSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See `runtime.parcel.Sample`."""

    codec: CodecName
    gradient: bool
    used: bool
    ratio: Annotated[float, Meta(gt=0, le=1e12)]
    error: Annotated[float, Meta(ge=0, le=MOST_ERROR)]
    saturated: Annotated[float, Meta(ge=0, le=1)]
    dead: Annotated[float, Meta(ge=0, le=1)]


class LinkBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker sent to `target` since it was last ready.

    `tensor_bytes` is what the tensors take in fp32, `wire_bytes` what the link carried for them and for
    whatever else was said on it: payloads, headers and frames. `payload_bytes` is what the payloads of the
    unit take alone. `not_finite` counts tensors that went as they are because a codec cannot write infinity
    or NaN. Codecs took `coding_seconds` of CPU time for what went there and what came from there.
    """

    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    payload_bytes: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    samples: Annotated[list[CodecSample], Meta(max_length=2 * MOST_CODECS)] = []


class LinkTraffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one worker sent another: in one unit, or in all of a job. See `LinkBytes`."""

    source: Id
    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0

    @property
    def ratio(self) -> float | None:
        """Bytes of the tensors in fp32 over bytes on the wire; None before there were any."""
        return self.tensor_bytes / self.wire_bytes if self.wire_bytes else None

    def with_more(self, more: LinkTraffic) -> LinkTraffic:
        """Both together, as far as messages can count."""
        return LinkTraffic(
            self.source,
            self.target,
            min(MOST_COUNT, self.tensor_bytes + more.tensor_bytes),
            min(MOST_COUNT, self.wire_bytes + more.wire_bytes),
            min(MOST_COUNT, self.not_finite + more.not_finite),
            min(1e9, self.coding_seconds + more.coding_seconds),
        )


class WayRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the way from `source` carries, in bytes of payload a second, as its traffic has shown here."""

    source: Id
    bytes_per_second: Annotated[float, Meta(gt=0, le=1e12)]


class UnitReady(Message, frozen=True):
    """Every microbatch of the unit has run here; `bytes_sent` went out on data links since the last ready.

    `links` are those to other workers, `rates` of the ways from them. Tasks of the unit took
    `computing_seconds`, without what codecs took.
    """

    job: Id
    attempt: Count
    unit: Count
    shares: Annotated[list[Share], Meta(max_length=100_000)]
    bytes_sent: Count
    links: Annotated[list[LinkBytes], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    rates: Annotated[list[WayRate], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    computing_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class Decide(Message, frozen=True):
    """The unit is decided: a step is applied with gradients times `scale`, an evaluation only ends.

    With `codecs` they take the place of the plan's from the next unit on; all are of the job's codebook.
    """

    job: Id
    attempt: Count
    unit: Count
    scale: float
    codecs: Annotated[tuple[LinkCodec, ...], Meta(max_length=100_000)] | None = None


class SendState(Message, frozen=True):
    """Send the owned parameters and buffers of every segment, as they stand, to the submitter."""

    job: Id
    attempt: Count


class Broken(Message, frozen=True):
    """The worker cannot go on with the job (a peer was lost, an error in a segment)."""

    job: Id
    attempt: Count
    reason: Text


class Stop(Message, frozen=True):
    """Drop the job's work and memory and go back to the backup pool."""

    job: Id
    attempt: Count
    reason: Text
