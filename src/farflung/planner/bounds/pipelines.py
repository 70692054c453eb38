"""A lower bound on the simulated time of a step, over all plans of one pipeline.

A plan here is any assignment of contiguous segments to workers, one to each, except that the worker of the
first may also hold the last if parameters are used in both: any cuts, any workers in any order, any window.
Let T be its step time, M its microbatches, and let all rates, speeds and latencies be those of the topology.
The bound is the least T that violates none of the following conditions, each of which holds for every plan.
(`gates.Block`: all work of a block comes after all work of the blocks before, forward, and before it,
backward.)

1. *Round trips.* If U is a lower bound on the time of one microbatch before it reaches a piece of work, plus
   the time from its gradient leaving this work to the end of the step, then M times this piece fits into T -
   U: the first forward pass cannot begin earlier, nor the last backward pass end later. Where gradients of
   parameters come after those that are sent (`passes.round_trip_share`), that is so for what is on its path,
   and M times the whole piece fits into T less what is before it and less the word of its end to the broker.
   What a microbatch does one after the other, at least, is the longest path through each block; and where a
   hop is counted beside it, which may be on another path through its block, the shortest path through that
   one. A path without a gradient has no backward part.
2. *New workers.* A worker with work in some block but in none before gets a value from another worker that
   is on a path from the last gate to this work, at least `Block.forward_bytes`, and gives its gradient back.
   So U before a worker's first work is at least the cheapest hops into all workers of earlier blocks, one
   for each block, and into itself; at least the shortest path from the first worker to it; and at least its
   own round trip to the broker, which starts the step and gets its end.
3. *Links.* Every such hop occupies a link M times, and before and after that the rest of one microbatch's
   round trip must fit. Links that are too slow for T are out, and all workers of a row of blocks lie in one
   component of what is left. A worker that is neither first nor last in the row receives a value and sends a
   gradient, and sends a value and receives a gradient. If it cannot (its access line is too slow for both, or
   it has only one neighbour left whose link cannot carry both), it can only be the first or one of the last,
   of which there are at most as many as the last block has operators.
4. *Work.* All work of the row is done by such workers, each within T - U; and what they hold fits into their
   memory with the window that T asks for: M microbatches pass in T with no more than W at a time, so
   W >= M x round trip / T, a whole number. State and tapes of different operators add up (`Items.fit`).
5. *Waiting.* A worker with a gate makes all later workers wait for all its work: U grows from worker to
   worker by what each does of a microbatch. Then workers do the most if the fastest are first and each does
   as much as fits (`Interval._filled`; two neighbours in any other order do less, and one more at the end
   never hurts).
6. *Ranges.* What a worker has of the row is one range between two places where it may be cut. If every worker
   has one range of the model (no parameter is used at both ends), it gets from others each value that is read
   in its range and made before, and sends others each that is made in it and read after, with gradients back;
   else those at least that its neighbours surely make or read. One link of each such worker carries the
   largest of these M times there and back, beside a round trip (`Pieces`). So it fills its time with whole
   ranges that its best link allows, however little crosses elsewhere.
7. *Operators.* An operator runs on one worker. So at most n workers run the last n operators, for every n,
   and two operators count as one if every link is too slow for what crosses between them.
8. *Inputs.* The worker of the first operator receives M times the model inputs that this operator reads.

Conditions that are left out make the bound looser, never wrong. With replicas only the speed of the whole
fleet counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

from farflung.planner.bounds.gates import Block, blocks_of, longest_path
from farflung.planner.bounds.interval import CLOSE, Home, Interval
from farflung.planner.bounds.rows import Items, Pieces, Row
from farflung.planner.devices import Devices
from farflung.planner.memoize import once
from farflung.planner.objective.closed_form import FORWARD, round_trip_share
from farflung.plans import Topology
from farflung.simulator import Conditions
from farflung.workload import Workload


def lower_bound_seconds(
    topology: Topology,
    workload: Workload,
    efficiency: float = 1.0,
    replicas: int = 1,
    recompute: bool = False,
    split_backward: bool = Conditions().split_backward,
) -> float:
    """A lower bound on the simulated step time of all plans with up to `replicas` pipelines."""
    devices = Devices.of(topology, efficiency)
    fleet = workload.microbatches * workload.work[-1] / devices.speeds.sum()
    if replicas > 1:
        trip = FORWARD * longest_path(workload, 0, len(workload)) / devices.speeds.max()
        return float(max(fleet, trip if split_backward else trip / FORWARD)) * (1 - CLOSE)
    number = topology.ids.index(topology.home.id)
    home = Home(devices.latency[number], devices.latency[:, number], devices.bandwidth[number])
    best = float(fleet)
    for known in _known(workload, recompute):
        row = Row(known.blocks, workload.microbatches, round_trip_share(split_backward))
        interval = Interval(devices, row, home, known.items, known.pieces, known.fed_bytes)
        best = max(best, interval.least(best))
    return best * (1 - CLOSE)


@dataclass(frozen=True)
class _Known:
    """A row of blocks with its properties that do not depend on the fleet."""

    blocks: tuple[Block, ...]
    items: Items
    pieces: Pieces | None
    fed_bytes: float


@once
def _known(workload: Workload, recompute: bool) -> tuple[_Known, ...]:
    rows = _intervals(blocks_of(workload)) if workload.work[-1] else []
    return tuple(
        _Known(
            blocks,
            Items.of(workload, blocks, recompute),
            Pieces.of(workload, blocks),
            _fed_bytes(workload, blocks[0]),
        )
        for blocks in rows
    )


def _intervals(blocks: tuple[Block, ...]) -> list[tuple[Block, ...]]:
    """For each amount of bytes, the longest rows of blocks between which at least that much crosses.

    Each row begins with a block of one operator.
    """
    found = []
    for least in sorted({block.forward_bytes for block in blocks[1:]}):
        row: list[Block] = []
        for block in blocks:
            if row and block.forward_bytes < least:
                found.append(tuple(row))
                row = []
            row.append(block)
        found.append(tuple(row))
    total = sum(block.work for block in blocks)
    rows = {(row[0].start, row[-1].stop): row for row in map(_from_one, found or [blocks]) if row}
    return [row for row in rows.values() if sum(block.work for block in row) > 0.05 * total]


def _from_one(row: Sequence[Block]) -> tuple[Block, ...]:
    """The row from its first single operator on; work before that may send it little, from any worker."""
    return tuple(dropwhile(lambda block: block.workers > 1, row))


def _fed_bytes(workload: Workload, block: Block) -> float:
    """Bytes of model inputs for one microbatch that the single operator of a block reads itself."""
    return float(sum(feed.bytes for feed in workload.feeds if block.stop in feed.readers))
