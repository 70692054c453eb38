"""What every scheduler asks first: whether there can be a plan at all, and if not, what is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farflung.errors import PlanError, TooFewCuts
from farflung.planner.assignment import Assignment, Options, memory_by_worker
from farflung.planner.cutting.chain import Cutter
from farflung.planner.cutting.ties import kept_together
from farflung.planner.devices import Devices
from farflung.plans import Topology, connected_part, why_left_out
from farflung.text import count_of
from farflung.workload import Workload

NOTHING_TO_TRAIN = (
    "the loss depends on no trainable parameter: set requires_grad on those that are to be trained"
)
FEWER = "use fewer workers (--workers or --local)"


@dataclass(frozen=True)
class Fleet:
    """The workers that a plan may use: `count` of them exactly, unless None; `notes` say who is left out."""

    topology: Topology
    devices: Devices
    count: int | None
    notes: tuple[str, ...]


def usable_fleet(topology: Topology, workload: Workload, options: Options) -> Fleet:
    """Those workers of `topology` who can all reach one another.

    Raises
    ------
    PlanError
        There is nothing to train, or there are fewer workers or fewer cuts than are asked for, or less memory
        than the model needs on any number of workers.
    """
    joined, _ = connected_part(topology)
    count = options.workers
    if count is not None and not 1 <= count <= len(joined.workers):
        were = "1 worker was" if count == 1 else f"{count} workers were"
        why = "".join(f"; {words}" for words in why_left_out(topology))
        raise PlanError(f"{were} asked for, {len(joined.workers)} can all reach one another{why}")
    require_segments(workload, (count or 1) // options.most_replicas)
    devices = Devices.of(joined, options.efficiency)
    _require_memory(workload, devices, options)
    return Fleet(joined, devices, count, why_left_out(topology))


def require_segments(workload: Workload, count: int) -> None:
    """Refuse what cannot be cut into `count` segments of which each owns a parameter.

    Raises
    ------
    PlanError
        There is nothing to train.
    TooFewCuts
        There are too few places to cut.
    """
    if not workload.trainable_bytes.any():
        raise PlanError(NOTHING_TO_TRAIN)
    most = most_segments(workload, workload.legal)
    if count > most:
        found = f"the model can be cut into at most {count_of(most, 'segment')}, {count} were asked for"
        raise TooFewCuts(found, FEWER, most)


def refuse_ties(workload: Workload, count: int) -> TooFewCuts:
    """Why there are no `count` segments if the uses of each parameter must stay on one worker."""
    most = most_segments(workload, kept_together(workload))
    return TooFewCuts(
        f"parameters are used all over the model and their uses must stay on one worker: at most {most} "
        f"workers can share it, {count} were asked for",
        FEWER,
        most,
    )


def refuse_memory(workload: Workload, devices: Devices, skips: int, options: Options) -> PlanError:
    """Why there is no cut for a chain of devices: where how much memory is missing."""
    window = options.window or 1
    cutter = Cutter(workload, window, options.recompute)
    enough = _least_extra(cutter, devices, skips)
    if enough is None:
        return refuse_ties(workload, len(devices))
    cut = cutter.cut(_with_extra(devices, enough), skips)
    assert cut is not None
    workers = tuple((devices.ids[device],) for device in cut.devices)
    found = Assignment(cut.cuts, workers, workload.microbatches, window, recompute=cut.recompute)
    taken = memory_by_worker(workload, found)
    needed = np.array([taken.get(id, 0.0) for id in devices.ids])
    missing = np.maximum(needed - devices.memory_bytes, 0.0)
    worst = int(missing.argmax())
    return PlanError(
        f"no cut fits: {devices.ids[worst]} has {_gigabytes(devices.memory_bytes[worst])}, its part needs "
        f"{_gigabytes(needed[worst])}; {_gigabytes(missing.sum())} missing in all: "
        + advice(workload, float(devices.memory_bytes.sum()))
    )


def advice(workload: Workload, held_bytes: float) -> str:
    """What helps where memory is short. Smaller microbatches do where they can be had, and what does not
    shrink with them would fit into `held_bytes`.
    """
    shrinks = workload.tape_bytes.sum() > 0 and workload.microbatch_size > 1
    return (
        "add workers, or use smaller microbatches"
        if shrinks and workload.fixed_bytes.sum() <= held_bytes
        else "add workers"
    )


def most_segments(workload: Workload, legal: NDArray[np.bool_]) -> int:
    """Into how many segments a workload can be cut at `legal` positions, each owning a parameter."""
    owned = workload.owned
    most, start = 1, 0
    for position in np.flatnonzero(legal[:-1])[1:]:  # cutting as early as possible leaves most to cut
        if owned[start] < owned[position] < owned[-1]:
            most, start = most + 1, position
    return most


def _require_memory(workload: Workload, devices: Devices, options: Options) -> None:
    """A cut saves no memory: what crosses it is held on both sides."""
    needed = workload.memory_bytes(0, len(workload), 1, options.recompute)
    held = np.sort(devices.memory_bytes)[::-1][: options.workers].sum()
    if needed > held:
        raise PlanError(
            f"the model needs {_gigabytes(needed)} and the workers have {_gigabytes(held)}: "
            f"{_gigabytes(needed - held)} missing: {advice(workload, float(held))}"
        )


def _least_extra(cutter: Cutter, devices: Devices, skips: int) -> float | None:
    """Bytes that every device must have more, up to 1 %; None if no amount helps."""
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
    """In one unit; too little for a decimal in two digits."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 or not count else f"{count / 1e9:.2g} GB"
