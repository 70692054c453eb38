"""Messages between a worker and the broker about a job, in the order of the job."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.opdag.graph import MOST_METRICS, ValueId
from farflung.plans import LinkCodec, Plan
from farflung.protocol.copies import StateVersion
from farflung.protocol.fields import Addresses, Count, Id, Message, Name, Text
from farflung.protocol.traffic import LinkBytes, LinkRate
from farflung.runtime.training import Training

MOST_HISTORY = 10_000
"""Units that one worker may run again."""


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

Payloads = Annotated[dict[Count, ShareDigest], Meta(max_length=100_000)]
"""Digests of what a segment exchanged in a unit with segments of other workers, by segment."""


class PastUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decided unit that one worker runs again: `scale` and `codecs` are those of its `Decide`.

    `digests` are those of the shares that the segments of the worker had, by segment: they must come again,
    and `received` has those of what they received then. A checker hears neither.
    """

    scale: float
    codecs: Annotated[tuple[LinkCodec, ...], Meta(max_length=100_000)] | None = None
    digests: dict[Count, ShareDigest] = {}
    received: dict[Count, Payloads] = {}


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
    same units again, when these ask. Then it has the state that the other members hold. If this is a `check`,
    which has a number in its attempt, it has no part in that: it says what it found (`Checked`), and drops
    all. With `pieces` it also says what each parameter and buffer is then.

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
    check: Count = 0
    pieces: bool = False

    @property
    def checks(self) -> bool:
        """Whether a worker without a part in the attempt loads this, to check another one's share."""
        return bool(self.check)

    @property
    def key(self) -> tuple[str, int] | tuple[str, int, int]:
        """The job and the attempt, and the number of the check, if it is one."""
        return (self.job, self.attempt, self.check) if self.check else (self.job, self.attempt)

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
    that replicas have added up (`runtime.sums`), if its device lets it be read. In a step of a job that is
    checked, `sent` and `received` are digests of the payloads that the segment exchanged. Older versions sent
    one `square_sum`.
    """

    segment: Count
    finite: bool
    loss: float
    squares: Annotated[dict[ValueId, float], Meta(max_length=100_000)] = {}
    square_sum: float = 0.0
    metrics: MetricSums = {}
    bits: Annotated[dict[ValueId, BitSum], Meta(max_length=100_000)] = {}
    sent: Payloads = {}
    received: Payloads = {}

    @property
    def digest(self) -> bytes:
        """A short digest of the numbers and of what was sent, equal for equal bits."""
        others = [sorted(one.items()) for one in (self.metrics, self.bits, self.sent) if one]
        numbers = (self.segment, self.finite, self.loss, sorted(self.squares.items()), *others)
        return hashlib.sha256(msgspec.msgpack.encode(numbers)).digest()[:8]


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
