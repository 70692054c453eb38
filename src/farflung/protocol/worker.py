"""Messages between a worker and the broker, in the order of a job."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from farflung.opdag.graph import MOST_METRICS, ValueId
from farflung.plans import LinkCodec, Plan
from farflung.plans.ability import Ability, Lacks
from farflung.plans.codec_pair import MOST_CODECS
from farflung.plans.rates import Rates
from farflung.plans.topology import LEAST_MBPS, MOST_MBPS, MOST_TFLOPS
from farflung.protocol.copies import MOST_HELD, HeldCopy, StateVersion
from farflung.protocol.fields import MOST_COUNT, Addresses, Count, Id, Message, Name, Opset, Text
from farflung.protocol.membership import Within
from farflung.runtime.parcel import CodecSample
from farflung.runtime.training import Training

MOST_HISTORY = 10_000
"""Units that one worker may run again."""


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device that a worker offers.

    `memory_bytes` is what its owner lets jobs use, `framework` the framework that it computes with, `lacks`
    the ops of the opset and the element types that it refuses. `tflops` is the rate that it sustains in
    float32 matrix products without TF32, `rates` are its others, as measured by the worker when it started
    and later (`Measured`); 0 and None are unknown. `kernels` is the digest of what its kernels compute
    (`runtime.kernels`): devices with equal ones may repeat each other's steps bit for bit. Empty is unknown.

    Devices with the same `machine` share its `cores`, of which a task keeps `threads` busy; empty: they share
    none, or it is unknown.
    """

    kind: Id
    name: Text
    cores: Count
    memory_bytes: Count
    framework: Text
    opset: Opset
    tflops: Annotated[float, Meta(ge=0, le=MOST_TFLOPS)] = 0.0
    lacks: Lacks = ()
    kernels: Annotated[str, Meta(max_length=64)] = ""
    rates: Rates | None = None
    machine: Annotated[str, Meta(max_length=64)] = ""
    threads: Count = 1

    @property
    def least_tflops(self) -> float:
        """The slowest rate at which its products may compute."""
        slow = None if self.rates is None else self.rates.bfloat16_tflops
        return self.tflops if slow is None else min(self.tflops, slow)

    @property
    def ability(self) -> Ability:
        """The ops and element types that the device can run."""
        return Ability(self.opset.version, self.lacks, self.framework, self.kind, self.kernels)


class HomeLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's access line as its owner declares it; None: to be measured.

    Without `probes` the worker takes no part in surveys, which send bytes only to measure links.
    """

    up_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    down_mbps: Annotated[float, Meta(ge=LEAST_MBPS, le=MOST_MBPS)] | None = None
    probes: bool = True


Seal = Annotated[bytes, Meta(max_length=64)]


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker that registers again still holds of an attempt.

    `unit` is the unit that it runs, or runs next: it has applied all units before. A worker whose `phase` is
    loaded waits for `Begin`. A broken one cannot go on, and says why again (`Broken`).
    """

    job: Id
    attempt: Count
    unit: Count
    phase: Literal["loading", "loaded", "running", "collecting", "broken"]


MOST_HOMES = 100
"""The most submitters of which one worker is a home worker."""


class Register(Message, frozen=True):
    """First message of a worker: peers can dial it at `addresses` (HOST:PORT); `boot` is new per process.

    `relay_mbps` is the rate at which it relays links of others; 0 if it does not. `line` is its access line.
    `standing` is the attempt that it holds from an earlier session, if any. `generation` and `seal` are those
    of the newest broker that admitted this process: a broker of an earlier generation has been replaced.

    `held` are the copies on its disk, which may take `disk_bytes` (0: it holds none). The broker answers with
    what to keep of each job (`Retain`).

    A worker that has begun to leave (`Leaving`) goes on with that, in what is left of its time. Its owner
    says that it is the home worker of the submitters `home_of` (`plans.wishes.KeepHome`).
    """

    device: Device
    site: Text
    addresses: Addresses
    boot: Id
    relay_mbps: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    line: HomeLine = HomeLine()
    standing: Standing | None = None
    generation: Count = 0
    held: Annotated[list[HeldCopy], Meta(max_length=MOST_HELD)] = msgspec.field(default_factory=list)
    disk_bytes: Count = 0
    seal: Seal = b""
    leaving_seconds: Within | None = None
    home_of: Annotated[list[Id], Meta(max_length=MOST_HOMES)] = msgspec.field(default_factory=list)


class Registered(Message, frozen=True):
    """The broker admits the worker: to the backup pool, or to the attempt that it holds.

    `generation` is the epoch of the broker's store, which each start raises; 0 if the broker is older. `seal`
    shows to other brokers of the same authority that it is not made up. Links with the members that are
    `removed` must not be accepted.
    """

    worker: Id
    generation: Count = 0
    seal: Seal = b""
    removed: list[Id] = msgspec.field(default_factory=list)


class Moved(Message, frozen=True):
    """The addresses of a registered worker have changed."""

    addresses: Addresses


class Measured(Message, frozen=True):
    """A registered worker has measured its device again, while it was idle; the fields are as in `Device`."""

    tflops: Annotated[float, Meta(ge=0, le=MOST_TFLOPS)]
    rates: Rates | None = None


class PeerMoved(Message, frozen=True):
    """To the neighbours of `worker` in a job: its addresses have changed."""

    worker: Id
    addresses: Addresses


Shape = Annotated[list[Count], Meta(max_length=64)]


class SegmentProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment of the job in the OP-DAG wire format.

    `owned` maps the parameters and buffers that it owns to their sizes in bytes, and `trained` those that it
    updates to their shapes, so that a worker can receive the state while it still verifies the program (and
    refuse both if they disagree).
    """

    segment: Count
    program: bytes
    owned: dict[Name, Count] = {}
    trained: Annotated[dict[Name, Shape], Meta(max_length=100_000)] = {}


ShareDigest = Annotated[bytes, Meta(max_length=8)]
"""The first bytes of the SHA-256 of a segment's share of a unit."""


class PastUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decided unit that one worker runs again: `scale` and `codecs` are those of its `Decide`.

    `digests` are those of the shares that the segments of the worker had, by segment: they must come again.
    """

    scale: float
    codecs: Annotated[tuple[LinkCodec, ...], Meta(max_length=100_000)] | None = None
    digests: dict[Count, ShareDigest] = {}


class Load(Message, frozen=True):
    """Load these segments, to begin at unit `unit` with the state that the submitter sends.

    `addresses` maps neighbours to HOST:PORT lists; dial those with a greater id. If steps were applied before
    `unit`, the submitter also sends the optimizer slots of each trained parameter; if `unit` is not the first
    one and the job has codecs, also the state of this worker's coders.

    `holders` maps each member to the one that holds its copies; those two need a link, but do not wait for
    it. With `version` the state comes from copies of that version and not from the submitter: from this
    worker's own disk, or over a link from the member that `donors` names for it. With `sources` it was
    copied on another plan: each member reads the shares that `sources` names for it, each from its own disk
    or from the member beside the share, and takes from them by name what its segments own. Coders begin anew.

    With a `history` the worker runs so many units again from `unit` on: it asks neighbours and submitter for
    what they sent then (`Pull`), and sends nothing but to neighbours among the `replayers`, which run the
    same units again, when these ask. Then it has the state that the other members hold.

    Segments in `state_donors` get their state from the segment that is named there, which another pipeline
    has and which holds the same after each unit: its worker sends it over a link. Coders begin anew.
    """

    job: Id
    attempt: Count
    plan: Plan
    training: Training
    programs: Annotated[list[SegmentProgram], Meta(max_length=100_000)]
    addresses: dict[Id, Addresses]
    submitter: Id
    unit: Count = 0
    holders: dict[Id, Id] = msgspec.field(default_factory=dict)
    version: StateVersion | None = None
    donors: dict[Id, Id] = msgspec.field(default_factory=dict)
    history: Annotated[list[PastUnit], Meta(max_length=MOST_HISTORY)] = msgspec.field(default_factory=list)
    replayers: list[Id] = msgspec.field(default_factory=list)
    sources: dict[Id, dict[Count, Id]] = msgspec.field(default_factory=dict)
    state_donors: dict[Count, Count] = msgspec.field(default_factory=dict)

    def shares_for(self, worker: str) -> dict[int, str]:
        """The shares of the version that a member reads, each with the one on whose disk it is."""
        if self.sources:
            return self.sources.get(worker, {})
        return {min(self.plan.segments_of(worker)): self.donors.get(worker, worker)}

    @property
    def gifts(self) -> list[tuple[str, str, int]]:
        """Who gives whom which share of the version: donor, taker and share."""
        takers = self.sources or self.donors
        given = [(donor, taker, share) for taker in takers for share, donor in self.shares_for(taker).items()]
        return [gift for gift in given if gift[0] != gift[1]]

    @property
    def state_gifts(self) -> list[tuple[str, str]]:
        """Who gives state over a link, and who gets it."""
        seats = self.plan.seats()
        pairs = self.state_donors.items()
        return [(seats[donor], seats[taker]) for taker, donor in pairs if {donor, taker} <= seats.keys()]


class Loaded(Message, frozen=True):
    """The worker has verified its segments, holds their whole state and is linked to its neighbours.

    If it can make no copies of its state, `unprotected` says why. Its part needs `needs_bytes` of memory.
    """

    job: Id
    attempt: Count
    unprotected: Text = ""
    needs_bytes: Count = 0


class Refused(Message, frozen=True):
    """The worker will not run this job; `reason` is one line for the user.

    It `lacks` a part of its state if the copies from which it was to read that do not have it.
    """

    job: Id
    attempt: Count
    reason: Text
    lacks: bool = False


class Begin(Message, frozen=True):
    """Every worker has loaded: run the first unit, then each next one when the one before is decided."""

    job: Id
    attempt: Count


class Continue(Message, frozen=True):
    """Another attempt of the job that the worker holds: keep the state, and drop the unit in flight.

    `unit` is the first one that is not decided: all before it are applied. Plan, programs and training stay
    those of the last `Load`; `addresses` are as there. Link up anew and answer with `Loaded`. Then units go
    on after `Begin`, or the state is sent after `SendState`.

    A `plan`, if given, has the same segments, but maybe other workers for those of lost ones. The `replayers`
    run past units again, from `replay_from` on. If the worker has no longer what it sent to them in these, it
    refuses. `holders`, `donors`, the `version` that these give, and `state_donors` are as in `Load`;
    without `holders` they stay as they are.

    Pipelines of a plan with replicas may be dropped, or there again: then a worker needs as much memory as
    before, or it refuses.
    """

    job: Id
    attempt: Count
    unit: Count
    addresses: dict[Id, Addresses]
    reason: Text = ""
    plan: Plan | None = None
    replayers: list[Id] = msgspec.field(default_factory=list)
    replay_from: Count = 0
    holders: dict[Id, Id] | None = None
    donors: dict[Id, Id] = msgspec.field(default_factory=dict)
    version: StateVersion | None = None
    state_donors: dict[Count, Count] = msgspec.field(default_factory=dict)


class StandBy(Message, frozen=True):
    """To an idle worker: hold copies of members of a job that runs, in which it has no part.

    It admits links of the members that `standbys` maps to it, and dials those with a greater id, at
    `addresses`. It stays in the backup pool: a `Load` of any job ends this, and so does `Stop`.
    """

    job: Id
    attempt: Count
    plan: Plan
    training: Training
    submitter: Id
    standbys: dict[Id, Id]
    addresses: dict[Id, Addresses]


class Standbys(Message, frozen=True):
    """From the next version on these idle workers hold the copies of members, by owner; the attempt goes on.

    The copies of all others go to the holders that `Load` named. `addresses` are those of the workers that
    this one exchanges such copies with: dial those with a greater id that are new.
    """

    job: Id
    attempt: Count
    standbys: dict[Id, Id]
    addresses: dict[Id, Addresses]


MetricSums = Annotated[dict[ValueId, float], Meta(max_length=2 * MOST_METRICS)]


BitSum = Annotated[int, Meta(ge=0, lt=2**32)]


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment's part of a unit.

    `squares` has the float64 sum of squares of each gradient that the segment owns, by the value id of its
    parameter, and is empty after an evaluation. `finite` says whether all of them, and the loss, are finite.
    `loss` is its float64 sum of w_m * loss_m (0.0 without the loss). `metrics` has the float64 sums of the
    metrics' values over an evaluation's microbatches, by value id. `bits` has the bit sum of each gradient
    that replicas have added up (`runtime.sums`), if its device lets it be read. Older versions sent one
    `square_sum`.
    """

    segment: Count
    finite: bool
    loss: float
    squares: Annotated[dict[ValueId, float], Meta(max_length=100_000)] = {}
    square_sum: float = 0.0
    metrics: MetricSums = {}
    bits: Annotated[dict[ValueId, BitSum], Meta(max_length=100_000)] = {}

    @property
    def digest(self) -> bytes:
        """A short digest of the numbers, equal for equal bits."""
        others = [sorted(one.items()) for one in (self.metrics, self.bits) if one]
        numbers = (self.segment, self.finite, self.loss, sorted(self.squares.items()), *others)
        return hashlib.sha256(msgspec.msgpack.encode(numbers)).digest()[:8]


class LinkBytes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traffic from a worker to `target` since its last `UnitReady`.

    `tensor_bytes` is the size of the tensors in fp32, `wire_bytes` all bytes that the link carried: payloads,
    headers, frames and other messages. `payload_bytes` is the size of the unit's payloads alone. `not_finite`
    counts tensors that were sent dense because a codec cannot encode infinity or NaN. `coding_seconds` is the
    CPU time of codecs for tensors to and from `target`.
    """

    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    payload_bytes: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    samples: Annotated[list[CodecSample], Meta(max_length=2 * MOST_CODECS)] = []


class LinkTraffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traffic of one link, in one unit or in the whole job. See `LinkBytes`."""

    source: Id
    target: Id
    tensor_bytes: Count
    wire_bytes: Count
    not_finite: Count = 0
    coding_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0

    @property
    def ratio(self) -> float | None:
        """Bytes of the tensors in fp32 over bytes on the wire; None if nothing was sent."""
        return self.tensor_bytes / self.wire_bytes if self.wire_bytes else None

    def with_more(self, more: LinkTraffic) -> LinkTraffic:
        """The sum of both, limited to what a message can hold."""
        return LinkTraffic(
            self.source,
            self.target,
            min(MOST_COUNT, self.tensor_bytes + more.tensor_bytes),
            min(MOST_COUNT, self.wire_bytes + more.wire_bytes),
            min(MOST_COUNT, self.not_finite + more.not_finite),
            min(1e9, self.coding_seconds + more.coding_seconds),
        )


class LinkRate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rate of the link from `source`, in payload bytes per second, measured from its traffic."""

    source: Id
    bytes_per_second: Annotated[float, Meta(gt=0, le=1e12)]


class UnitReady(Message, frozen=True):
    """All microbatches of the unit have run here.

    `bytes_sent` were sent over data links since the last `UnitReady`, and `bytes_copied` of state besides.
    `links` are the links to other workers, `rates` the rates of links from them. Tasks of the unit took
    `computing_seconds` of the device, not counting codecs. The worker still has what it sent in the units
    from `logged_from` on (None: in none).
    """

    job: Id
    attempt: Count
    unit: Count
    shares: Annotated[list[Share], Meta(max_length=100_000)]
    bytes_sent: Count
    links: Annotated[list[LinkBytes], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    rates: Annotated[list[LinkRate], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    computing_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    logged_from: Count | None = None
    bytes_copied: Count = 0


class Decide(Message, frozen=True):
    """The unit is decided: a step is applied with gradients times `scale`, an evaluation just ends.

    Pipelines that train apart each have their own of `scales`, in their order.
    `codecs`, if given, replace the plan's codecs from the next unit on; all are in the job's codebook. With
    `keep`, copy the state right after this unit, and send the copy to the submitter while training goes on.
    With `copy`, copy it to this worker's disk and to that of its holder, and say so (`Copied`).
    """

    job: Id
    attempt: Count
    unit: Count
    scale: float
    codecs: Annotated[tuple[LinkCodec, ...], Meta(max_length=100_000)] | None = None
    keep: bool = False
    copy: bool = False
    scales: Annotated[tuple[float, ...], Meta(max_length=1_000)] = ()


class SendState(Message, frozen=True):
    """Run no further unit, and send the owned parameters and buffers of every segment to the submitter.

    If `whole`, send the state of the optimizer and of the coders with them.
    """

    job: Id
    attempt: Count
    whole: bool = False


class Broken(Message, frozen=True):
    """The worker cannot go on with the job: it lost the link to `peer`, or (without one) a segment failed.

    If it failed on data or a payload that cannot be used, `sender` sent it: the submitter, or another worker.
    """

    job: Id
    attempt: Count
    reason: Text
    peer: Id | None = None
    sender: Id | None = None


class Stop(Message, frozen=True):
    """Drop the job's work and memory and go back to the backup pool.

    If the job is `over`, delete the copies of its state, too.
    """

    job: Id
    attempt: Count
    reason: Text
    over: bool = False
