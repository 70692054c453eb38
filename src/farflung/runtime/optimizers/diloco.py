"""DiLoCo: replicas train apart for many steps, then an outer optimizer merges what they have learned.

Douillard et al., arXiv 2311.08105, algorithm 1. Each pipeline runs `inner_steps` steps of the job's own
optimizer on its part of every batch. Then a *merge* adds up how far each parameter has come from its
*anchor*, which is what the last merge left: with weights w_p, the pipelines' shares of a batch, the outer
gradient is sum over p of w_p * (anchor - parameter_p). All pipelines take the same outer step from the
anchor, which is their parameter from then on. Their inner optimizers go on with the state that each has of
its own.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.runtime.optimizers.bounds import require_number, require_whole
from farflung.schedule import Rounds

MOST_STEPS = 10**9
MOST_PIPELINES = 1_000
MOST_SECONDS = 1e6


class Nesterov(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outer optimizer: `torch.optim.SGD` with Nesterov's momentum, whose parameters are the anchors.

    The paper takes 0.7 and 0.9 for 500 inner steps; the defaults, with about half of its effective step, were
    better for 20 of them (docs/measurements/replicas.md).

    Raises
    ------
    ValueError
        `lr` is not positive, or `momentum` not from 0 to below 1.
    """

    lr: float = 0.8
    momentum: float = 0.8

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        if not self.lr:
            raise ValueError("lr of the outer optimizer must be above 0: nothing would be learned")
        require_number("momentum", self.momentum, 0.0, 1.0, below=True)


class DiLoCo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas train apart and merge now and then (arXiv 2311.08105), so that far fewer bytes are sent.

    This changes numbers: it is another algorithm than a step with the gradients of the whole batch.
    Evaluations between merges are those of the first replica. Running statistics of BatchNorm stay each
    replica's own, and those of the first one come home. Moving averages (`ema`) are refused.

    Parameters
    ----------
    inner_steps
        Steps between two merges. There is a merge after the last step, too.
    outer
        The outer optimizer.
    warmup
        Steps at the beginning that the first replica takes alone, with the whole batch; the others wait, and
        then take over its parameters. Without it, replicas that start from random weights drift apart.
    quorum
        With at least so many replicas left, the others go on at once if one loses a worker, from the state
        that they have: it is left out of merges, which weight the others by their parts of a batch, and is
        there again after a merge, with what that left. None: all go back to a version of the state that has
        every replica's part.
    grace
        Seconds that a replica may be later with a step than `quorum` of them; then it is left out, too. None:
        the others wait for it.

    Raises
    ------
    ValueError
        A number is out of its range.
    """

    inner_steps: Annotated[int, Meta(ge=1, le=MOST_STEPS)]
    outer: Nesterov = msgspec.field(default_factory=Nesterov)
    warmup: Annotated[int, Meta(ge=0, le=MOST_STEPS)] = 0
    quorum: Annotated[int, Meta(ge=1, le=MOST_PIPELINES)] | None = None
    grace: Annotated[float, Meta(gt=0, le=MOST_SECONDS)] | None = None

    def __post_init__(self) -> None:
        require_whole("inner_steps", self.inner_steps, 1, MOST_STEPS)
        require_whole("warmup", self.warmup, 0, MOST_STEPS)
        if self.quorum is not None:
            require_whole("quorum", self.quorum, 1, MOST_PIPELINES)
        if self.grace is not None:
            require_number("grace", self.grace, 0.0, MOST_SECONDS)
            if not self.grace or self.quorum is None:
                raise ValueError("grace must be above 0 seconds, and counts from a quorum: give both")
        if not isinstance(self.outer, Nesterov):
            raise ValueError(f"outer must be farflung.Nesterov(...), found {self.outer!r:.60}")

    @property
    def rounds(self) -> Rounds:
        """When pipelines merge."""
        return Rounds(self.inner_steps, self.warmup)
