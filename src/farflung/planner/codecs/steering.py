"""The controller and the guard of one job together: what a unit showed in, how links are written next out.
Pure.

The planner's process hands over what it planned with, as bytes; whoever decides units asks once a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from farflung.codec.catalogue import recipe
from farflung.planner.codecs.codec_context import LinkSample
from farflung.planner.codecs.controller import (
    CodecsSampled,
    Controller,
    Event,
    Relax,
    Switch,
    UnitMeasured,
    WayMeasured,
    WayWritten,
)
from farflung.planner.codecs.decisions import heard
from farflung.planner.codecs.guard import Alarm, Evidence, Guard, HeldOut, Rougher, Trained
from farflung.planner.codecs.ladder import ladder, number_of
from farflung.planner.codecs.limits import Limits
from farflung.planner.codecs.plan_context import gathered
from farflung.plans import LinkCodec, Plan, Topology
from farflung.plans.codec_pair import DENSE
from farflung.simulator import Conditions


class Basis(msgspec.Struct, frozen=True):
    """What a plan was made with."""

    plan: Plan
    topology: Topology
    conditions: Conditions
    limits: Limits


@dataclass(frozen=True)
class Over:
    """A unit that is over, with its loss after how many steps; a `plain` evaluation was without codecs.

    `ways`, `computing`, `written` and `sampled` are what was measured; seconds are those of a microbatch.
    """

    unit: int
    train: bool
    step: int
    loss: float
    ways: tuple[WayMeasured, ...] = ()
    computing: Mapping[str, float] = field(default_factory=dict)
    written: tuple[WayWritten, ...] = ()
    plain: bool = False
    sampled: tuple[LinkSample, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What follows for the units after. `codecs` are those of all links from `switches[0].unit` on; without
    switches nothing changes. `words` are alarms that ask for nothing.
    """

    switches: tuple[Switch, ...]
    codecs: tuple[LinkCodec, ...]
    words: tuple[str, ...]

    @property
    def is_news(self) -> bool:
        """Whether anybody has to be told of it."""
        return bool(self.switches or self.words)

    def then(self, later: Verdict) -> Verdict:
        """Both together: of several changes of a way the last."""
        switches = _last((*self.switches, *later.switches))
        codecs = later.codecs if later.switches else self.codecs
        return Verdict(switches, codecs, (*self.words, *later.words))


def steering(plan: Plan, topology: Topology, conditions: Conditions, limits: Limits) -> bytes:
    """What `Steering.begun` takes."""
    return msgspec.msgpack.encode(Basis(plan, topology, conditions, limits))


@dataclass(frozen=True)
class Steering:
    """How the links of one job are written, and why that may change; `in_loop` is the last held-out loss with
    codecs.
    """

    controller: Controller
    guard: Guard
    in_loop: float | None = None

    @staticmethod
    def begun(basis: bytes) -> Steering:
        """Before the first unit, with the codecs that the plan names.

        Raises
        ------
        PlanError, CodecError
            Plan and topology do not fit each other, or it has a rung that is not on the ladder.
        """
        known = msgspec.msgpack.decode(basis, type=Basis)
        scene = gathered(known.plan, known.topology, known.conditions)
        named = {(codec.source, codec.target): codec.codec for codec in known.plan.codecs}
        levels = tuple(
            number_of(rung, ladder()) if (rung := named.get((way.source, way.target))) else 0
            for way in scene.ways
        )
        controller = Controller.with_levels(scene, ladder(), known.limits, levels)
        return Steering(controller, Guard(known.limits.max_loss_gap))

    def unmoved(self) -> tuple[Steering, Verdict]:
        """As if there had been nothing to see."""
        return self, Verdict((), (), ())

    def all_over(self, units: Sequence[Over]) -> tuple[Steering, Verdict]:
        """After units, in order: the steering, and what is to change."""
        steering, verdict = self.unmoved()
        for over in units:
            steering, more = steering.over(over)
            verdict = verdict.then(more)
        return steering, verdict

    def over(self, over: Over) -> tuple[Steering, Verdict]:
        """After a unit: the steering, and what is to change."""
        before = self.controller.levels
        measured = UnitMeasured(over.unit, over.ways, over.computing, over.written)
        controller = _told(self.controller, over)
        controller, switches = heard(controller, measured)
        guard, alarms = self._guarded(over)
        words = [alarm.reason for alarm in alarms if not alarm.relax]
        for event in _relaxations(over.unit, alarms):
            controller, more = heard(controller, event)
            switches = (*switches, *more)
        if any(new > old for new, old in zip(controller.levels, before, strict=True)):
            guard, _ = guard.heard(Rougher(over.step))
        verdict = Verdict(_last(switches), controller.codecs() if switches else (), tuple(words))
        looped = self.in_loop if over.train or over.plain else over.loss
        return replace(self, controller=controller, guard=guard, in_loop=looped), verdict

    def _guarded(self, over: Over) -> tuple[Guard, tuple[Alarm, ...]]:
        found: list[Evidence] = []
        if over.train:
            found = [Trained(over.step, over.loss), *filter(_is_used, over.sampled)]
        elif over.plain and self.in_loop is not None:
            found = [HeldOut(over.step, self.in_loop, over.loss)]
        guard, alarms = self.guard, list[Alarm]()
        for evidence in found:
            guard, more = guard.heard(evidence)
            alarms.extend(more)
        return guard, tuple(alarms)


def _is_used(link: LinkSample) -> bool:
    return link.sample.used and link.sample.codec != DENSE


def _told(controller: Controller, over: Over) -> Controller:
    """With what codecs did to tensors of the unit, those aside that learn: at first they know nothing yet,
    and what links carry tells more of them (`written`).
    """
    samples = tuple(link for link in over.sampled if not recipe(link.sample.codec).learns)
    return heard(controller, CodecsSampled(over.unit, samples))[0] if samples else controller


def _relaxations(unit: int, alarms: tuple[Alarm, ...]) -> list[Event]:
    return [Relax(unit, alarm.reason, alarm.source, alarm.target) for alarm in alarms if alarm.relax]


def _last(switches: tuple[Switch, ...]) -> tuple[Switch, ...]:
    """Of several changes of a way the last."""
    return tuple({(switch.source, switch.target): switch for switch in switches}.values())
