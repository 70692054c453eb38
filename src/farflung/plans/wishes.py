"""How a job wants to be planned, and what is expected of the plan that it got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from farflung.errors import PlanError
from farflung.plans.codec_policy import POLICIES, CodecPolicy, policy_of
from farflung.plans.phases import PhasedRung, codecs_in
from farflung.plans.rung import DENSE
from farflung.plans.topology import Topology

Word = Annotated[str, Meta(max_length=128)]
LINE_LENGTH = 2000
Line = Annotated[str, Meta(max_length=LINE_LENGTH)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]

Recompute = Literal["auto", "always", "never"]

AUTO: Final = "auto"

DATA_SHEET_EFFICIENCY = 0.4
"""Of the TFLOP/s on a device's data sheet, what training reaches."""

MEASURED_EFFICIENCY = 0.7
"""Of the TFLOP/s that a worker measured with matrix products, what training reaches: 0.48 to 0.80 on four
models, 0.70 in the median (docs/explanation/planner.md, "The objective")."""


MAX_LOSS_GAP = 0.01
"""What `auto` may cost, unless a job says otherwise."""


MOST_NAMED = 8
"""Workers that an error lists."""


class LinkWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With which rung the link from one worker to another is to be written, or with which in turn."""

    source: Word
    target: Word
    rung: PhasedRung


class CodecWishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With which rung links are to be written: every link, and those that are named, each once.

    Rungs may come in turn (`plan.phases`). `every` may name a policy that chooses (`plan.codec_policy`);
    `auto` keeps the loss of the exported model within `max_loss_gap`, relative.
    """

    every: PhasedRung = DENSE
    links: Annotated[tuple[LinkWish, ...], Meta(max_length=100_000)] = ()
    max_loss_gap: Annotated[float, Meta(ge=0, le=1)] = MAX_LOSS_GAP

    def __post_init__(self) -> None:
        if len({(wish.source, wish.target) for wish in self.links}) < len(self.links):
            raise ValueError("a link may be given one codec")
        if self.links and not self.is_fixed:
            raise ValueError(f"{self.every} chooses for every link: none may be given a codec beside it")

    def otherwise(self, rung: str, max_loss_gap: float = MAX_LOSS_GAP) -> CodecWishes:
        """The same, with `rung` for the links of which these wishes say nothing.

        Raises PlanError if it is a policy, which chooses for every link, and some have a codec.
        """
        if self.every != DENSE:
            return self
        if self.links and rung.partition(":")[0] in POLICIES:
            raise PlanError(f"codec {rung} chooses for every link: give none a codec beside it")
        return msgspec.structs.replace(self, every=rung, max_loss_gap=max_loss_gap)

    def require_ends(self, workers: Sequence[str]) -> None:
        """Refuse a named link that ends at none of `workers`, of whom a job is to run on some; PlanError."""
        for wish in self.links:
            for end in (wish.source, wish.target):
                if end not in workers:
                    more = ", ..." if len(workers) > MOST_NAMED else ""
                    raise PlanError(
                        f"the codec {wish.rung} is for the link {wish.source} -> {wish.target}, and there is"
                        f" no worker {end}: the workers are {', '.join(workers[:MOST_NAMED])}{more}"
                    )

    @property
    def policy(self) -> CodecPolicy | None:
        """Who chooses; None where every link has what is said here. CodecError if it cannot be."""
        return policy_of(self.every)

    @property
    def is_fixed(self) -> bool:
        """Whether every link has what is said here."""
        return self.every.partition(":")[0] not in POLICIES

    @property
    def codebook(self) -> tuple[str, ...]:
        """Every codec that these rungs need."""
        if (policy := self.policy) is not None:
            return policy.codebook
        texts = (self.every, *(wish.rung for wish in self.links))
        return tuple(dict.fromkeys(name for text in texts for name in codecs_in(text)))


ALL_DENSE = CodecWishes()


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By which scheduler a job is planned, and what it believes of the workers.

    `topology` takes the place of what the fleet has measured; without either, segments are balanced over
    workers that are taken to be equal. `efficiency` is the part of their TFLOP/s that devices reach; None is
    what the topology's kind suggests. `recompute` says whether segments run forward twice in place of keeping
    what they computed: where memory asks for it, all of them, or none. `codecs` say how links are written,
    with names of the training's codebook.
    """

    scheduler: Word = AUTO
    topology: Topology | None = None
    efficiency: Annotated[float, Meta(gt=0, le=1)] | None = None
    recompute: Recompute = AUTO
    codecs: CodecWishes = ALL_DENSE


NO_WISHES = Wishes()


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan promises: the simulated time of a step, and what it spends it on.

    No plan takes less than `lower_bound_seconds` (0: nothing is proven). `left_out` are workers that were
    there and get no part, `unreachable` those who cannot because a way is missing. `measured` says whether
    the fleet's own measurements were planned on, or a file's. Where tasks are so `brief` that what Python
    takes for them decides (`simulator.simulation`), `step_seconds` says little.
    """

    scheduler: Word
    step_seconds: Seconds
    bottleneck: Line
    lower_bound_seconds: Seconds = 0.0
    left_out: list[Word] = []
    notes: list[Line] = []
    measured: bool = False
    unreachable: list[Word] = []
    brief: bool = False
