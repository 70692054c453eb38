"""The step commit: a unit is completed on every worker, or on none.

Segments whose updates are applied together form a commit group with one coordinator. Today the group is the
whole job and the coordinator is the broker; nothing outside this file may rely on that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farflung.errors import ProtocolError
from farflung.plans import Plan
from farflung.protocol import messages
from farflung.protocol.fields import MOST_COUNT
from farflung.protocol.messages import UnitReady
from farflung.protocol.traffic import LinkTraffic
from farflung.protocol.worker import Share
from farflung.runtime.optimizers.clipping import added_in_order, clip_scale, gradient_norm
from farflung.schedule import Unit
from farflung.text import count_of


@dataclass(frozen=True)
class Verdict:
    """The decision of a complete group.

    `scale` multiplies every gradient of the step; pipelines that train apart each have their own of `scales`,
    and the norm is the largest of theirs. `loss` is the sum of the shares, `gradient_norm` the global
    norm before clipping (0.0 for an evaluation), and `squares` what each segment adds to its square in a
    step. `metrics` are the sums of an evaluation's metrics.
    `trouble` is empty, or says why the step cannot be applied.
    """

    scale: float
    loss: float
    gradient_norm: float
    bytes_sent: int
    trouble: str
    links: tuple[LinkTraffic, ...] = ()
    bytes_copied: int = 0
    metrics: Mapping[int, float] = field(default_factory=dict)
    scales: tuple[float, ...] = ()
    squares: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CommitGroup:
    """The shares of one unit in one attempt received so far, from `ready_messages`.

    The newest of them was added `at` this time (seconds since 1970), and each at its one of `times`.
    Pipelines that train `apart` each have their segments in it, and how many times as large their gradients
    must become: a pipeline weights each of its microbatches by all of the step's.
    """

    attempt: int
    unit: Unit
    owners: Mapping[str, tuple[int, ...]]
    shares: Mapping[int, Share]
    trained: tuple[frozenset[int], ...] = ()
    bytes_sent: int = 0
    links: tuple[LinkTraffic, ...] = ()
    ready_messages: tuple[tuple[str, UnitReady], ...] = ()
    bytes_copied: int = 0
    at: float = 0.0
    times: tuple[float, ...] = ()
    apart: tuple[tuple[frozenset[int], float], ...] = ()

    @classmethod
    def for_plan(
        cls,
        plan: Plan,
        attempt: int,
        unit: Unit,
        trained: Sequence[frozenset[int]] = (),
        is_apart: bool = False,
    ) -> CommitGroup:
        """A group that waits for every segment of `plan`; `trained` as in `Job`, empty if not known.

        If it `is_apart`, each pipeline applies its own gradients.
        """
        owners = {worker: tuple(plan.segments_of(worker)) for worker in plan.workers()}
        apart = _apart(plan, unit) if is_apart and unit.train else ()
        return cls(attempt, unit, owners, {}, tuple(trained), apart=apart)

    @property
    def complete(self) -> bool:
        """Whether the shares of all segments have arrived."""
        return len(self.shares) == sum(map(len, self.owners.values()))

    def missing_workers(self) -> list[str]:
        """Workers whose shares are missing, in plan order."""
        return [
            worker for worker, owned in self.owners.items() if owned and not self.shares.keys() >= set(owned)
        ]

    def holds(self, worker: str, ready: UnitReady) -> bool:
        """Whether `worker`'s shares were added from this very message."""
        found = [known for name, known in self.ready_messages if name == worker]
        return any(messages.encode(known) == messages.encode(ready) for known in found)  # NaN != NaN

    def add(self, worker: str, ready: UnitReady, at: float = 0.0) -> CommitGroup:
        """The group with `worker`'s shares added, which came `at` this time.

        Raises
        ------
        ProtocolError
            The shares belong to another attempt or unit, follow others of the same worker, are not exactly
            those of its segments, or hold a negative sum of squares or others than those of the parameters
            that the segment updates; or the message names a link that the plan does not have.
        """
        if (ready.attempt, ready.unit) != (self.attempt, self.unit.number):
            raise ProtocolError(
                f"worker {worker} is ready for unit {ready.unit} of attempt {ready.attempt}, "
                f"expected unit {self.unit.number} of attempt {self.attempt}"
            )
        found = sorted(share.segment for share in ready.shares)
        if found != sorted(self.owners.get(worker, ())):
            raise ProtocolError(
                f"worker {worker} sent shares of segments {found[:20]}, "
                f"the plan gives it {sorted(self.owners.get(worker, ()))[:20]}"
            )
        if self.shares.keys() & set(found):
            raise ProtocolError(f"worker {worker} sent other shares of unit {ready.unit} than before")
        self._check_squares(worker, ready.shares)
        added = {share.segment: share for share in ready.shares}
        return replace(
            self,
            shares={**self.shares, **added},
            bytes_sent=min(MOST_COUNT, self.bytes_sent + ready.bytes_sent),
            bytes_copied=min(MOST_COUNT, self.bytes_copied + ready.bytes_copied),
            links=(*self.links, *self._links(worker, ready)),
            ready_messages=(*self.ready_messages, (worker, ready)),
            at=at,
            times=(*self.times, at),
        )

    def verdict(self, clip: float | None) -> Verdict:
        """Add up the losses in segment order and the squares by parameter, and decide.

        The group must be complete.
        """
        shares = [self.shares[segment] for segment in sorted(self.shares)]
        loss = added_in_order(share.loss for share in shares)
        if self.unit.evaluates:
            metrics: dict[int, float] = {}
            for share in shares:
                for value, number in share.metrics.items():
                    metrics[value] = metrics.get(value, 0.0) + number
            return Verdict(1.0, loss, 0.0, self.bytes_sent, "", self.links, self.bytes_copied, metrics)
        norms = [norm * factor for norm, factor in self._norms(shares)]
        finite = all(share.finite for share in shares) and all(map(math.isfinite, norms))
        bounds = clip if self.unit.train and finite else None
        scales = tuple(clip_scale(bounds, norm) for norm in norms)
        trouble = _trouble(loss)
        if finite and math.isfinite(loss):
            trouble = "" if self.apart else _drift(shares)
        own = tuple(scale * factor for scale, (_, factor) in zip(scales, self.apart, strict=False))
        return Verdict(
            scales[0],
            loss,
            max(norms),
            self.bytes_sent,
            trouble,
            self.links,
            self.bytes_copied,
            scales=own,
            squares=self._squares(shares) if self.unit.train else {},
        )

    def _squares(self, shares: Sequence[Share]) -> dict[int, float]:
        """The square sum of each segment that has gradients, weighted as the norm of its pipeline is."""
        factors = {segment: factor for segments, factor in self.apart for segment in segments}
        return {
            one.segment: added_in_order(one.squares.values()) * factors.get(one.segment, 1.0) ** 2
            for one in shares
            if one.squares
        }

    def _norms(self, shares: Sequence[Share]) -> list[tuple[float, float]]:
        """The norm of the gradients and their factor, of each pipeline that trains apart or of all."""
        if not self.apart:
            return [(gradient_norm(share.squares for share in shares), 1.0)]
        return [
            (gradient_norm(share.squares for share in shares if share.segment in segments), factor)
            for segments, factor in self.apart
        ]

    def _check_squares(self, worker: str, shares: Iterable[Share]) -> None:
        for share in shares:
            if any(square < 0 for square in share.squares.values()):
                raise ProtocolError(f"worker {worker} sent a negative sum of squares")
            if not share.bits.keys() <= share.squares.keys():
                raise ProtocolError(f"worker {worker} sent bit sums of parameters without squares")
            expected = frozenset() if self.unit.evaluates or not self.trained else self.trained[share.segment]
            if share.squares.keys() != expected and (self.trained or self.unit.evaluates):
                raise ProtocolError(
                    f"worker {worker} sent squares of {count_of(len(share.squares), 'parameter')} for segment"
                    f" {share.segment}, expected those of the {len(expected)} that it updates"
                )

    def _links(self, worker: str, ready: UnitReady) -> list[LinkTraffic]:
        others = self.owners.keys() - {worker}
        sources = {rate.source for rate in ready.rates}
        if len(sources) < len(ready.rates):
            raise ProtocolError(f"worker {worker} reports two rates for one link")
        if not sources <= others:
            raise ProtocolError(f"worker {worker} reports rates of links that are not in the plan")
        targets = {link.target for link in ready.links}
        if len(targets) < len(ready.links) or not targets <= others:
            raise ProtocolError(f"worker {worker} reports links that are not in the plan")
        return [
            LinkTraffic(
                worker,
                link.target,
                link.tensor_bytes,
                link.wire_bytes,
                link.not_finite,
                link.coding_seconds,
            )
            for link in ready.links
        ]


def _apart(plan: Plan, unit: Unit) -> tuple[tuple[frozenset[int], float], ...]:
    """The segments of each pipeline of a plan that has several, and the factor of its gradients.

    One that was dropped has none.
    """
    found = []
    for pipeline in range(len(plan.pipelines)):
        segments = frozenset(at for at in plan.live_segments() if plan.pipeline_of(at) == pipeline)
        found.append((segments, 1 / plan.share_of(pipeline) if segments and not unit.alone else 1.0))
    return tuple(found)


def add_traffic(
    before: Mapping[tuple[str, str], LinkTraffic], group: CommitGroup, worker: str
) -> dict[tuple[str, str], LinkTraffic]:
    """The traffic of each link since its job began, including what `worker` reported for the group's unit."""
    after = dict(before)
    for link in group.links:
        if link.source == worker:
            known = before.get((link.source, link.target), LinkTraffic(link.source, link.target, 0, 0))
            after[link.source, link.target] = known.with_more(link)
    return after


def _drift(shares: Iterable[Share]) -> str:
    """Says so if pipelines have found unlike sums of one gradient; each has all of them."""
    known: dict[int, tuple[int, float, int | None]] = {}
    for share in shares:
        for value, square in share.squares.items():
            found = (square, share.bits.get(value))
            segment, *before = known.setdefault(value, (share.segment, *found))
            if list(found) != before:
                return (
                    f"segments {segment} and {share.segment} have unlike gradients of one parameter (value"
                    f" {value}): one of their workers computes or adds wrongly"
                )
    return ""


def _trouble(loss: float) -> str:
    if math.isnan(loss):
        return "the loss became NaN"
    if math.isinf(loss):
        return "the loss became infinite"
    return "a gradient became NaN or infinite"
