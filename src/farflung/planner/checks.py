"""Checks that every scheduler makes first: whether a plan is possible and, if not, what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError, TooFewCuts
from farflung.planner.assignment import Assignment, Options, memory_by_worker
from farflung.planner.cutting.chain import Cutter
from farflung.planner.cutting.ties import positions_within_ties
from farflung.planner.devices import Devices
from farflung.plans import Topology, connected_part, why_left_out
from farflung.text import count_of
from farflung.workload import Workload

NOTHING_TO_TRAIN = (
    "the loss depends on no trainable parameter: set requires_grad on the parameters to train, and let"
    " neither detach() nor no_grad() cut the loss off from them"
)
FEWER = "use fewer workers (--workers or --local)"


@dataclass(frozen=True)
class Fleet:
    """The workers that a plan may use, exactly `count` unless None; `notes` say which are left out."""

    topology: Topology
    devices: Devices
    count: int | None
    notes: tuple[str, ...]


def usable_fleet(topology: Topology, workload: Workload, options: Options) -> Fleet:
    """The workers of `topology` that can all reach each other.

    Raises
    ------
    PlanError
        The model has nothing to train, there are fewer workers or cuts than requested, or the model needs
        more memory than all workers have.
    """
    connected, _ = connected_part(topology)
    count = options.workers
    if count is not None and not 1 <= count <= len(connected.workers):
        requested = "1 worker was" if count == 1 else f"{count} workers were"
        why = "".join(f"; {message}" for message in why_left_out(topology))
        raise PlanError(f"{requested} asked for, {len(connected.workers)} can all reach each other{why}")
    require_segments(workload, (count or 1) // options.most_replicas)
    devices = Devices.of(connected, options.efficiency)
    _require_memory(workload, devices, options)
    return Fleet(connected, devices, count, why_left_out(topology))


def require_segments(workload: Workload, count: int) -> None:
    """Check that a workload can be cut into `count` segments that each own a parameter.

    Raises
    ------
    PlanError
        The model has nothing to train.
    TooFewCuts
        There are too few positions for cuts.
    """
    if not workload.trainable_bytes.any():
        raise PlanError(NOTHING_TO_TRAIN)
    most = most_segments(workload, workload.legal)
    if count > most:
        message = f"the model can be cut into at most {count_of(most, 'segment')}, {count} were asked for"
        raise TooFewCuts(message, FEWER, most)


def refuse_ties(workload: Workload, count: int) -> TooFewCuts:
    """The error for too few segments because all uses of a parameter must stay on one worker."""
    most = most_segments(workload, positions_within_ties(workload))
    return TooFewCuts(
        f"parameters are used in several parts of the model, and all uses must be on one worker: at most"
        f" {most} workers can share the model, but {count} were asked for",
        FEWER,
        most,
    )


def refuse_memory(workload: Workload, devices: Devices, skips: int, options: Options) -> PlanError:
    """The error for a chain of devices without a cut: which worker lacks how much memory."""
    window = options.window or 1
    cutter = Cutter(workload, window, options.recompute)
    enough = _least_extra(cutter, devices, skips)
    if enough is None:
        return refuse_ties(workload, len(devices))
    cut = cutter.cut(_with_extra(devices, enough), skips)
    assert cut is not None
    workers = tuple((devices.ids[device],) for device in cut.devices)
    assignment = Assignment(cut.cuts, workers, workload.microbatches, window, recompute=cut.recompute)
    used_bytes = memory_by_worker(workload, assignment)
    needed = np.array([used_bytes.get(id, 0.0) for id in devices.ids])
    missing = np.maximum(needed - devices.memory_bytes, 0.0)
    worst = int(missing.argmax())
    return PlanError(
        f"no cut fits: {devices.ids[worst]} has {_gigabytes(devices.memory_bytes[worst])}, its part needs "
        f"{_gigabytes(needed[worst])}; {_gigabytes(missing.sum())} are missing in total: "
        + advice(workload, float(devices.memory_bytes.sum()))
    )


def advice(workload: Workload, held_bytes: float) -> str:
    """Advice for too little memory: smaller microbatches only help if the rest fits into `held_bytes`."""
    shrinks = workload.tape_bytes.sum() > 0 and workload.microbatch_size > 1
    return (
        "add workers, or use smaller microbatches"
        if shrinks and workload.fixed_bytes.sum() <= held_bytes
        else "add workers"
    )


def most_segments(workload: Workload, legal: NDArray[np.bool_]) -> int:
    """The largest number of segments, each owning a parameter, with cuts at `legal` positions."""
    owned = workload.owned
    most, start = 1, 0
    for position in np.flatnonzero(legal[:-1])[1:]:  # the earliest cuts leave the most room for others
        if owned[start] < owned[position] < owned[-1]:
            most, start = most + 1, position
    return most


def _require_memory(workload: Workload, devices: Devices, options: Options) -> None:
    """Check the total memory: cuts save none, because both sides hold the values that cross."""
    needed = workload.memory_bytes(0, len(workload), 1, options.recompute)
    available = np.sort(devices.memory_bytes)[::-1][: options.workers].sum()
    if needed > available:
        raise PlanError(
            f"the model needs {_gigabytes(needed)} and the workers have {_gigabytes(available)}, "
            f"{_gigabytes(needed - available)} are missing: {advice(workload, float(available))}"
        )


def _least_extra(cutter: Cutter, devices: Devices, skips: int) -> float | None:
    """The additional bytes that every device needs, within 1 %; None if no amount helps."""
    high = cutter.workload.memory_bytes(0, len(cutter.workload), 1)
    if not cutter.fits(_with_extra(devices, high), skips):
        return None
    low = 0.0
    while high - low > max(0.01 * high, 1.0):
        middle = (low + high) / 2
        fits = cutter.fits(_with_extra(devices, middle), skips)
        low, high = (low, middle) if fits else (middle, high)
    return high


def _with_extra(devices: Devices, extra_bytes: float) -> Devices:
    return replace(devices, memory_bytes=devices.memory_bytes + extra_bytes)


def _gigabytes(count: float) -> str:
    """Bytes in GB with one decimal, or two digits for small amounts."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 or not count else f"{count / 1e9:.2g} GB"
