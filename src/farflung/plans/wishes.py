"""What a job asks of planning, and what a plan is predicted to achieve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from farflung.errors import PlanError
from farflung.plans.codec_pair import DENSE, CodecName
from farflung.plans.codec_policy import POLICIES, CodecPolicy, policy_of
from farflung.plans.phases import PhasedCodecPair, codecs_in
from farflung.plans.topology import Topology

Word = Annotated[str, Meta(max_length=128)]
LINE_LENGTH = 2000
Line = Annotated[str, Meta(max_length=LINE_LENGTH)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]

Recompute = Literal["auto", "always", "never"]

AUTO: Final = "auto"

DATA_SHEET_EFFICIENCY = 0.4
"""Fraction of the TFLOP/s on a device's data sheet that training sustains."""

MEASURED_EFFICIENCY = 0.7
"""Fraction of the TFLOP/s that a worker measured with matrix products that training sustains: 0.48 to 0.80 on
four models, 0.70 in the median (docs/explanation/planner.md, "The objective")."""


VALIDATION_SHARE = 0.05
"""The share of the time of the steps that evaluations may take unless the user says how many they run."""


MAX_LOSS_GAP = 0.01
"""The relative increase of the loss that `auto` may cause by default."""


AUTO_SUM_CODEC: Final = "int8"
"""The codec of sums that `auto` may choose."""


MOST_NAMED = 8
"""How many workers an error message lists at most."""


class LinkWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The codec pair, or codec phases, that a job asks for on the link from one worker to another."""

    source: Word
    target: Word
    codec_pair: PhasedCodecPair = msgspec.field(name="rung")


class CodecWishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The codec pairs that a job asks for: one for every link, and others for named links, each once.

    Each may be codec phases (`plans.phases`). `every` may also name a codec policy (`plans.codec_policy`);
    `auto` keeps the loss of the exported model within `max_loss_gap`, relative. `sums` is the codec of what
    sums of gradients send from site to site; with `auto` the planner takes dense or `AUTO_SUM_CODEC`. A job
    `is_steady` if it has warm-up and global clipping: `auto` then uses rough gradients over more boundaries.
    """

    every: PhasedCodecPair = DENSE
    links: Annotated[tuple[LinkWish, ...], Meta(max_length=100_000)] = ()
    max_loss_gap: Annotated[float, Meta(ge=0, le=1)] = MAX_LOSS_GAP
    sums: CodecName = DENSE
    is_steady: bool = False

    def __post_init__(self) -> None:
        if len({(wish.source, wish.target) for wish in self.links}) < len(self.links):
            raise ValueError("a link may be given only one codec")
        if self.links and not self.is_fixed:
            raise ValueError(f"{self.every} chooses for every link: do not give links codecs of their own")

    def of_job(self, is_steady: bool) -> CodecWishes:
        """The same, for a job that has warm-up and clipping or lacks one of them."""
        return msgspec.structs.replace(self, is_steady=is_steady)

    def otherwise(
        self, codec: str, max_loss_gap: float = MAX_LOSS_GAP, sum_codec: str = DENSE
    ) -> CodecWishes:
        """The same, with `codec` for the links that these wishes do not mention, and `sum_codec` for sums.

        Raises PlanError if `codec` is a policy, which chooses for every link, and some links have a codec.
        """
        if self.sums == DENSE and sum_codec != DENSE:
            return msgspec.structs.replace(self, sums=sum_codec).otherwise(codec, max_loss_gap)
        if self.every != DENSE:
            return self
        if self.links and codec.partition(":")[0] in POLICIES:
            raise PlanError(f"codec {codec} chooses for every link: do not give links codecs of their own")
        return msgspec.structs.replace(self, every=codec, max_loss_gap=max_loss_gap)

    def require_ends(self, workers: Sequence[str]) -> None:
        """Raise PlanError if an end of a named link is not among `workers`."""
        for wish in self.links:
            for end in (wish.source, wish.target):
                if end not in workers:
                    more = ", ..." if len(workers) > MOST_NAMED else ""
                    raise PlanError(
                        f"the codec {wish.codec_pair} is for the link {wish.source} -> {wish.target}, but"
                        f" there is no worker {end}: the workers are {', '.join(workers[:MOST_NAMED])}{more}"
                    )

    @property
    def policy(self) -> CodecPolicy | None:
        """The policy that chooses codecs; None if they are fixed. Raises CodecError if it is invalid."""
        return policy_of(self.every)

    @property
    def is_fixed(self) -> bool:
        """Whether these wishes name the codec of every link, without a policy."""
        return self.every.partition(":")[0] not in POLICIES

    @property
    def codebook(self) -> tuple[str, ...]:
        """Every codec that these wishes need."""
        texts = (self.every, *(wish.codec_pair for wish in self.links))
        policy = self.policy
        found = policy.codebook if policy else [name for text in texts for name in codecs_in(text)]
        return tuple(dict.fromkeys((*found, *self.sum_codecs)))

    @property
    def sum_codecs(self) -> tuple[str, ...]:
        """The codec that sums may have beside dense, if any."""
        return () if self.sums == DENSE else (AUTO_SUM_CODEC if self.sums == AUTO else self.sums,)


ALL_DENSE = CodecWishes()


class KeepHome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which data stays at home: only `workers` may run segments that read it, or hold copies of these.

    `inputs` are the model inputs that its layers read, `targets` those that only loss and metrics read.
    """

    data: Annotated[tuple[Literal["inputs", "targets"], ...], Meta(max_length=2)] = ()
    workers: Annotated[tuple[Word, ...], Meta(max_length=1_000)] = ()

    def __post_init__(self) -> None:
        if self.data and not self.workers:
            raise ValueError("data that stays at home needs a home worker")


NOTHING_AT_HOME = KeepHome()


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a job asks of planning.

    `scheduler` makes the plan. `topology` replaces what the fleet has measured; without either, segments are
    balanced as if all workers were equal. `efficiency` is the fraction of their TFLOP/s that devices sustain;
    None uses the default for the kind of topology. `recompute` says whether segments recompute activations
    instead of storing them: only where memory requires it, always, or never. `codecs` says how links are
    coded, with names of the training's codebook. So many `replicas` of the model train on parts of each
    batch; 0 lets the planner choose. `home` says which data stays with which workers. Of the validation
    microbatches, evaluations take only as many as they can run in `validation_share` of the time of the
    steps, if that is known, but at least one; 0: all that the training says.
    """

    scheduler: Word = AUTO
    topology: Topology | None = None
    efficiency: Annotated[float, Meta(gt=0, le=1)] | None = None
    recompute: Recompute = AUTO
    codecs: CodecWishes = ALL_DENSE
    replicas: Annotated[int, Meta(ge=0, le=1_000)] = 1
    home: KeepHome = NOTHING_AT_HOME
    validation_share: Annotated[float, Meta(ge=0, le=1)] = 0.0


NO_WISHES = Wishes()


class Prediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan is predicted to achieve: the simulated time of a step, and its bottleneck.

    No plan takes less than `lower_bound_seconds` (0: no bound is known). `left_out` are workers that were
    available and get no segment, `unreachable` those left out because a link is missing. `asked` is how many
    workers the plan had to use, 0 if the planner chose. `measured` says whether the plan is based on the
    fleet's own measurements, not on a file. If tasks are so `brief` that Python's overhead dominates
    (`simulator.simulation`), `step_seconds` means little.
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
    asked: int = 0
