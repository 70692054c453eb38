"""Check the state that comes home: its numbers are finite, and the weights have the loss that was reported.

The digest that a worker sends with its state proves only that nothing changed on the way. So the submitter,
who has the data, evaluates the weights once more and compares the loss with the last one of the fleet.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from farflung.client.capture.prepared import Prepared
from farflung.client.output.records import Claim
from farflung.client.run.microbatches import Microbatches
from farflung.client.run.start import Earlier
from farflung.client.run.state_collector import ReceivedState
from farflung.errors import FarflungError, RunFailed
from farflung.protocol.messages import Planned
from farflung.runtime.state import StateKey
from farflung.runtime.training import Training
from farflung.schedule import Unit
from farflung.text import and_more, first_line
from farflung.transport.timeouts import Timeouts

if TYPE_CHECKING:
    from torch import Tensor

LOSS_TOLERANCE = 0.02
"""Relative. Devices round differently, most of all in bfloat16; useless weights differ by far more."""
LOSS_FLOOR = 1e-3
"""Share of the untrained model's loss below which a difference counts as rounding."""
NOWHERE = -1
"""The segment of what none owns."""
LEAST_SECONDS, SHARE_OF_RUN = 4.0, 0.02
"""A comparison may take this long, or this share of the run if that is more and the broker waits so long."""
NEARER = 0.25
"""A segment stands out if its earlier weights bring the loss so much nearer to the reported one."""


class Compared(msgspec.Struct, frozen=True):
    """The loss of the weights that came home, None with a reason if it was not computed.

    `first_seconds` is what the first microbatch took, with all that it prepares; 0 if none was evaluated.
    """

    loss: float | None
    reason: str = ""
    first_seconds: float = 0.0


def require_finite(prepared: Prepared, planned: Planned, state: ReceivedState) -> None:
    """Check that all numbers of the state are finite, except where the untrained model's were not.

    Raises
    ------
    RunFailed
        They are not; it names the segments and their workers.
    """
    import torch

    bad = [
        key
        for key, tensor in state.tensors.items()
        if not bool(torch.isfinite(tensor).all()) and not _begins_infinite(prepared, key)
    ]
    if bad:
        raise RunFailed(
            f"the state that came home has numbers that are not finite, in {and_more(_places(planned, bad))}:"
            " training diverged in the last step, or the worker sent false ones; go on from an earlier"
            " checkpoint with a smaller learning rate, or train on other workers (--on)"
        )


def require_checked(
    prepared: Prepared,
    planned: Planned,
    state: ReceivedState,
    checked: Mapping[tuple[int, StateKey], bytes],
    is_all: bool = False,
) -> None:
    """Check that what came home is what other workers found when they ran the last units again.

    `checked` has the SHA-256 of parameters, buffers and optimizer slots, by the segment that owns them and
    their keys; those of all that a step changes if `is_all`. The state of coders is not compared.

    Raises
    ------
    RunFailed
        It is not, or one is missing; it names the segments and their workers.
    """
    from farflung.runtime.torch_backend.tensors import memory

    changed = [key for key in state.tensors if key.name in prepared.changed]
    at = {name: segment for segment in _home_segments(planned) for name in planned.owned[segment]}
    found = {key: checked.get((at.get(key.name, NOWHERE), key)) for key in changed}
    missing = [key for key in changed if found[key] is None and state.tensors[key].numel()]
    if missing and is_all:
        raise RunFailed(
            f"weights came home that were not checked (verify=1), in {and_more(_places(planned, missing))}:"
            " none is saved; train again, at a broker of the same version of farflung as yours"
        )
    bad = [
        key
        for key, digest in found.items()
        if digest and hashlib.sha256(memory(state.tensors[key])).digest() != digest
    ]
    if bad:
        raise RunFailed(
            f"other weights came home than were checked, in {and_more(_places(planned, bad))}: train on"
            " workers that you trust (--on), or let an operator remove this one"
        )


def compared_loss(
    prepared: Prepared,
    training: Training,
    planned: Planned,
    state: ReceivedState,
    claim: Claim,
    run_seconds: float,
    timeouts: Timeouts,
    earlier: Callable[[], Earlier] | None = None,
) -> Compared:
    """Evaluate the weights on the held-out microbatches of `claim`, and compare the mean loss with its loss.

    A model that does not fit into this machine's memory, or takes too long, is not compared. `earlier` reads
    the newest state from before the end. The broker, whose `timeouts` these are, waits meanwhile.

    Raises
    ------
    RunFailed
        The losses differ; it names the segments that came home as zeros, else the one whose earlier weights
        bring the loss near the reported one, else all workers that sent weights.
    """
    most_seconds = min(timeouts.comparison_seconds, max(LEAST_SECONDS, SHARE_OF_RUN * run_seconds))
    try:
        found = _evaluated(prepared, training, state, claim.unit, most_seconds)
    except (FarflungError, RuntimeError, MemoryError) as error:
        return Compared(None, first_line(error))
    if found.loss is None or _agree(found.loss, claim):
        return found
    who = _suspects(prepared, planned, state)
    if earlier is not None and not who:
        with suppress(FarflungError, RuntimeError, MemoryError, KeyError):  # it may lack some weights
            who = _exchanged(
                prepared, training, planned, state, claim, found.loss, earlier(), timeouts.blame_seconds
            )
    if not who:
        keys = [key for key in state.tensors if not key.slot]
        who = f"one of {and_more(_places(planned, keys))} sent other weights than it trained, or a false loss"
    raise RunFailed(
        f"the weights that came home have a loss of {found.loss:.6g} on the validation data, but the fleet"
        f" reported {claim.loss:.6g}: {who}; train on workers that you trust (--on), or let an operator"
        " remove this one"
    )


def _suspects(prepared: Prepared, planned: Planned, state: ReceivedState) -> str:
    zeros = [key for key in state.tensors if not key.slot and _became_zero(prepared, key, state.tensors)]
    return f"tensors of {and_more(_places(planned, zeros))} came home as zeros" if zeros else ""


def _exchanged(
    prepared: Prepared,
    training: Training,
    planned: Planned,
    state: ReceivedState,
    claim: Claim,
    loss: float,
    earlier: Earlier,
    most_seconds: float,
) -> str:
    """The segment whose earlier weights bring the loss near the reported one; empty if none does in time.

    Honest weights are near their earlier ones, so exchanging those of an honest segment explains nothing.
    """
    unit = claim.unit
    microbatches = Microbatches(prepared.job, prepared.graph, unit.microbatches)
    batches = [one.tensors for one in microbatches.load_unit(unit)]
    found, began = [], time.monotonic()
    for segment in _home_segments(planned):
        names = [name for name in planned.owned[segment] if StateKey(name) in state.tensors]
        tensors = dict(weights_of(prepared, state)) | {name: earlier.state[StateKey(name)] for name in names}
        again = (
            evaluation_of(prepared, training, tensors, unit, unit.microbatches)(batches) if names else loss
        )
        found.append((_gap(again, claim), segment, again))
        if time.monotonic() - began > most_seconds:
            return ""
    (nearest, segment, again), *others = sorted(found)
    if not others or math.isinf(nearest) or nearest > NEARER * min(others[0][0], _gap(loss, claim)):
        return ""
    who = f"segment {segment} of worker {planned.plan.worker_of(segment)}"
    return (
        f"with what {who} had {earlier.words} it would be {again:.6g}, so most likely this worker sent other"
        " weights than it trained"
    )


def _gap(loss: float, claim: Claim) -> float:
    """How far a loss is from the reported one; infinite if it is not a number."""
    gap = abs(loss - claim.loss)
    return math.inf if math.isnan(gap) else gap


def _agree(own: float, claim: Claim) -> bool:
    allowed = LOSS_TOLERANCE * max(abs(own), abs(claim.loss)) + LOSS_FLOOR * abs(claim.first)
    return abs(own - claim.loss) <= allowed  # false if either is not a number


def _evaluated(
    prepared: Prepared, training: Training, state: ReceivedState, unit: Unit, most_seconds: float
) -> Compared:
    from farflung.client.capture.check import unaffordable

    if why := unaffordable(prepared.graph, prepared.job.microbatch_size):
        return Compared(None, why)
    microbatches = Microbatches(prepared.job, prepared.graph, unit.microbatches)
    tensors = dict(weights_of(prepared, state))
    began = time.monotonic()
    first, again = (microbatches.load_unit(unit._replace(microbatches=1)) for _ in range(2))
    reading = (time.monotonic() - began) / 2
    if not _equal(first[0].tensors, again[0].tensors):
        return Compared(None, "validation items differ each time they are read")
    evaluate = evaluation_of(prepared, training, tensors, unit, 1)
    began = time.monotonic()
    loss = evaluate([first[0].tensors])
    first_seconds = reading + time.monotonic() - began
    if unit.microbatches == 1:
        return Compared(loss, first_seconds=first_seconds)
    began = time.monotonic()
    evaluate([again[0].tensors])  # the first one also prepared what the others need, too
    expected = (reading + time.monotonic() - began) * unit.microbatches
    if expected > most_seconds:
        return Compared(None, f"evaluating them takes about {expected:.1f} s on this machine", first_seconds)
    batches = [one.tensors for one in microbatches.load_unit(unit)]
    loss = evaluation_of(prepared, training, tensors, unit, unit.microbatches)(batches)
    return Compared(loss, first_seconds=first_seconds)


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    import torch

    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def evaluation_of(
    prepared: Prepared, training: Training, tensors: Mapping[str, Tensor], unit: Unit, count: int
) -> Callable[[list[dict[str, Tensor]]], float]:
    """Computes these weights' mean loss on `count` microbatches, as one worker with all of the graph."""
    from farflung.planner import plan_graph
    from farflung.runtime.in_process import InProcessPipeline
    from farflung.runtime.parity.steps import received

    graph, size = prepared.graph, prepared.job.microbatch_size
    planned = plan_graph(graph, count, size, ["here"])
    settings = msgspec.structs.replace(training, validation_microbatches=count)
    segments = received(planned.programs, size)
    pipeline = InProcessPipeline(graph, planned.plan, segments, tensors, settings, first=unit.number)

    def mean_loss(batches: list[dict[str, Tensor]]) -> float:
        pipeline.restart()
        return sum(share.loss for share in pipeline.run(unit.number, batches))

    return mean_loss


def weights_of(prepared: Prepared, state: ReceivedState) -> Iterator[tuple[str, Tensor]]:
    """All parameters and buffers by name: those that came home, and the model's own where none came."""
    for entry in prepared.graph.inputs:
        if entry.kind in ("parameter", "buffer"):
            came = state.tensors.get(StateKey(entry.name))
            yield entry.name, (prepared.state[entry.name] if came is None else came).detach()


def _begins_infinite(prepared: Prepared, key: StateKey) -> bool:
    import torch

    own = None if key.slot else prepared.state.get(key.name)
    return own is not None and not bool(torch.isfinite(own).all())


def _became_zero(prepared: Prepared, key: StateKey, tensors: Mapping[StateKey, Tensor]) -> bool:
    own = prepared.state.get(key.name)
    return own is not None and bool(own.any()) and not bool(tensors[key].any())


def _places(planned: Planned, keys: list[StateKey]) -> list[str]:
    """The segments that own these, with their workers, in order."""
    names, plan = {key.name for key in keys}, planned.plan
    return [
        f"segment {segment} of worker {plan.worker_of(segment)}"
        for segment in _home_segments(planned)
        if names.intersection(planned.owned[segment])
    ]


def _home_segments(planned: Planned) -> list[int]:
    """Those that send their state home, in order."""
    plan = planned.plan
    segments = range(len(planned.owned))
    return [segment for segment in segments if plan.pipeline_of(segment) == plan.home_pipeline]
