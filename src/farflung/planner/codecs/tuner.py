"""Codec tuning of one job, by its controller and its guard: units in, codec changes out. Pure.

The planner's process provides the initial state as bytes. The broker calls the tuner once for each unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from farflung.codec.catalogue import recipe
from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.controller import (
    BeginProbe,
    CodecsSampled,
    Controller,
    EndProbe,
    Event,
    LinkMeasured,
    LinkWritten,
    Relax,
    Switch,
    UnitMeasured,
)
from farflung.planner.codecs.decisions import on_event
from farflung.planner.codecs.guard import (
    Alarm,
    Evidence,
    Finding,
    Guard,
    HeldOutLoss,
    ProbeBegins,
    RougherCodec,
    TrainingLoss,
)
from farflung.planner.codecs.ladder import ladder, number_of
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.plan_context import codec_context
from farflung.planner.codecs.stall import ROUGH
from farflung.plans import CodecFindings, LinkCodec, Plan, Topology
from farflung.plans.codec_pair import DENSE
from farflung.simulator import Conditions

_NOTHING = CodecFindings()


class Basis(msgspec.Struct, frozen=True):
    """The inputs of a plan, from which codec tuning starts."""

    plan: Plan
    topology: Topology
    conditions: Conditions
    limits: Limits

    def seated(self, workers: Sequence[Sequence[str]]) -> Basis:
        """The inputs with the segments on these `workers`: for each segment, those of its replicas.

        A worker that took another one's place is taken to have its speed and links, until units tell more.
        """
        pairs = [
            (before, after)
            for placed, row in zip(self.plan.placements, workers, strict=True)
            for before, after in zip(placed.workers, row, strict=True)
        ]
        names = {before: after for before, after in pairs if before != after}
        if not names:
            return self
        placements = [
            msgspec.structs.replace(placed, workers=list(row))
            for placed, row in zip(self.plan.placements, workers, strict=True)
        ]
        known = {one.id for one in self.topology.workers}
        renamed = {old: new for old, new in names.items() if new not in known}
        specs = tuple(
            msgspec.structs.replace(one, id=renamed.get(one.id, one.id)) for one in self.topology.workers
        )
        submitter = self.topology.submitter
        return msgspec.structs.replace(
            self,
            plan=msgspec.structs.replace(self.plan, placements=placements, codecs=[], later=[]),
            topology=msgspec.structs.replace(
                self.topology, workers=specs, submitter=submitter and renamed.get(submitter, submitter)
            ),
        )


@dataclass(frozen=True)
class FinishedUnit:
    """A finished unit with its loss, after `step` steps; a `plain` evaluation used no codecs.

    `links`, `computing`, `written` and `sampled` hold its measurements; seconds are per microbatch.
    """

    unit: int
    train: bool
    step: int
    loss: float
    links: tuple[LinkMeasured, ...] = ()
    computing: Mapping[str, float] = field(default_factory=dict)
    written: tuple[LinkWritten, ...] = ()
    plain: bool = False
    sampled: tuple[LinkSample, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The changes for later units. `codecs` are those of all links from `switches[0].unit` on; without
    switches nothing changes. `words` are warnings that ask for no change. `findings` are those of the run, or
    None if nothing has changed.
    """

    switches: tuple[Switch, ...]
    codecs: tuple[LinkCodec, ...]
    words: tuple[str, ...]
    findings: CodecFindings | None = None

    @property
    def is_news(self) -> bool:
        """Whether there is anything to report or to store."""
        return bool(self.switches or self.words) or self.findings is not None

    def then(self, later: Verdict) -> Verdict:
        """Both together; of several changes of a link, the last one."""
        switches = _last((*self.switches, *later.switches))
        codecs = later.codecs if later.switches else self.codecs
        findings = self.findings if later.findings is None else later.findings
        return Verdict(switches, codecs, (*self.words, *later.words), findings)


def tuning_basis(plan: Plan, topology: Topology, conditions: Conditions, limits: Limits) -> bytes:
    """The initial state for `CodecTuner.start`, as bytes."""
    return msgspec.msgpack.encode(Basis(plan, topology, conditions, limits))


@dataclass(frozen=True)
class CodecTuner:
    """Codec tuning of one job; `in_loop` is the last held-out loss with codecs."""

    controller: Controller
    guard: Guard
    in_loop: float | None = None

    @staticmethod
    def start(
        basis: bytes,
        codecs: Sequence[LinkCodec] | None = None,
        workers: Sequence[Sequence[str]] = (),
        findings: CodecFindings = _NOTHING,
    ) -> CodecTuner:
        """The tuner before it has seen a unit, with `codecs`, or else with those that the plan names.

        `workers`, if given, are those that each of the plan's segments is on by now, one for each replica.
        `findings` are those of the run so far. A probe that was under way is over.

        Raises
        ------
        PlanError, CodecError
            Plan and topology do not match, or the plan has a codec pair that is not on the ladder.
        """
        known = msgspec.msgpack.decode(basis, type=Basis)
        if workers:
            known = known.seated(workers)
        context = codec_context(known.plan, known.topology, known.conditions)
        current = known.plan.codecs if codecs is None else codecs
        named = {(codec.source, codec.target): codec.codec for codec in current}
        levels = tuple(
            number_of(rung, ladder()) if (rung := named.get((link.source, link.target))) else 0
            for link in context.links
        )
        controller = Controller.with_levels(context, ladder(), known.limits, levels)
        controller = controller.with_findings(findings)
        return CodecTuner(controller, Guard(known.limits.max_loss_gap))

    def unchanged(self) -> tuple[CodecTuner, Verdict]:
        """This tuner with an empty verdict."""
        return self, Verdict((), (), ())

    def on_units(self, units: Sequence[FinishedUnit]) -> tuple[CodecTuner, Verdict]:
        """The tuner after these units in order, and the changes to make."""
        tuner, verdict = self.unchanged()
        for unit in units:
            tuner, more = tuner.on_unit(unit)
            verdict = verdict.then(more)
        return tuner, verdict

    def on_unit(self, finished: FinishedUnit) -> tuple[CodecTuner, Verdict]:
        """The tuner after a unit, and the changes to make."""
        before = self.controller.levels
        measured = UnitMeasured(finished.unit, finished.links, finished.computing, finished.written)
        controller = _with_samples(self.controller, finished)
        controller, switches = on_event(controller, measured)
        guard, found = self._check(finished)
        words = [one.reason for one in found if isinstance(one, Alarm) and not one.relax]
        for event in _reactions(finished.unit, found):
            controller, more = on_event(controller, event)
            switches = (*switches, *more)
        if any(new > old for new, old in zip(controller.levels, before, strict=True)):
            guard, _ = guard.on_evidence(RougherCodec(finished.step))
        findings = controller.findings()
        known = None if not switches and findings == self.controller.findings() else findings
        verdict = Verdict(_last(switches), controller.codecs() if switches else (), tuple(words), known)
        looped = self.in_loop if finished.train or finished.plain else finished.loss
        return replace(self, controller=controller, guard=guard, in_loop=looped), verdict

    def _check(self, finished: FinishedUnit) -> tuple[Guard, tuple[Finding, ...]]:
        evidence: list[Evidence] = []
        if finished.train:
            is_rough = self.controller.noise > ROUGH and not self.controller.is_sticky
            loss = TrainingLoss(finished.step, finished.loss, is_rough)
            evidence = [loss, *filter(_is_used, finished.sampled)]
        elif finished.plain and self.in_loop is not None:
            evidence = [HeldOutLoss(finished.step, self.in_loop, finished.loss)]
        guard, found = self.guard, list[Finding]()
        for one in evidence:
            guard, more = guard.on_evidence(one)
            found.extend(more)
        return guard, tuple(found)


def _is_used(link: LinkSample) -> bool:
    return link.sample.used and link.sample.codec != DENSE


def _with_samples(controller: Controller, finished: FinishedUnit) -> Controller:
    """The controller with the unit's samples, except those of codecs that learn.

    Such codecs are poor at first, and the bytes that links carry (`written`) say more about them.
    """
    samples = tuple(link for link in finished.sampled if not recipe(link.sample.codec).learns)
    return on_event(controller, CodecsSampled(finished.unit, samples))[0] if samples else controller


def _reactions(unit: int, found: tuple[Finding, ...]) -> Iterator[Event]:
    """What the controller is asked to do."""
    for one in found:
        if isinstance(one, Alarm):
            if one.relax:
                yield Relax(unit, one.reason, one.source, one.target)
        elif isinstance(one, ProbeBegins):
            yield BeginProbe(unit, one.reason)
        else:
            yield EndProbe(unit, one.reason, one.stalled)


def _last(switches: tuple[Switch, ...]) -> tuple[Switch, ...]:
    """Of several changes of a link, the last one."""
    return tuple({(switch.source, switch.target): switch for switch in switches}.values())
