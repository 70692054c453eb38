"""What no plan can undercut: a lower bound on the simulated time of a step, over all plans of one pipeline.

A plan here is any assignment of contiguous segments to workers, one to each, but that the worker of the first
one may hold the last one too where parameters are used in both: any cuts, any workers in any order, any
window. Let T be its step time, M its microbatches, and let all rates, speeds and latencies be those of the
topology. The bound is the least T that breaks none of the following, each of which holds for every plan.
(`gates.Block`: all work of a block comes after all work of the blocks before, forward, and before it,
backward.)

1. *Round trips.* If U is a lower bound on the time of one microbatch before it reaches a piece of work, plus
   the time from its gradient leaving this work to the end of the step, then M times this piece fits into
   T - U: the first forward pass cannot begin earlier, nor the last backward pass end later. Where gradients
   of parameters come after those that are sent (`passes.on_the_way`), that is so for what is on the way, and
   M times the whole piece fits into T less what is before it and less the word of its end to the broker.
   What a microbatch does one after the other, at least, is the longest way through each block; and where a
   hop is counted beside it, which may be on another way through its block, the shortest way through that one.
   A way without a gradient has no way back.
2. *New workers.* A worker with work in some block but in none before gets a value from another worker that
   is on a way from the last gate to this work, at least `Block.forward_bytes`, and gives its gradient back.
   So U before a worker's first work is at least the cheapest hops into all workers that came in earlier
   blocks, one for each block, and into itself; at least the shortest way from the first worker to it; and at
   least its own way to the broker and back, as it hears of the step and tells that it has ended.
3. *Links.* Every such hop occupies a link M times, and before and after that the rest of one microbatch's
   round trip must fit. Links that are too slow for T are out, and all workers of a row of blocks lie in one
   component of what is left. A worker that is neither first nor last in the row gets a value and gives a
   gradient, and passes a value on and gets a gradient; who cannot (his line is too slow for both, or he has
   one neighbour left, and no second turn fits on their link) can only be the first or, as many as the last
   block has operators, the last.
4. *Work.* All work of the row is done by such workers, each within T - U; and what they hold fits into their
   memory with the window that T asks for: M microbatches pass in T with no more than W at a time, so
   W >= M x round trip / T, a whole number. State and tapes of different operators add up (`Items.fit`).
5. *Waiting.* Who holds a gate keeps all later workers waiting for all it has: U grows from worker to worker
   by what each does of a microbatch. Then the fastest first, each with as much as fits, do the most
   (`Interval._filled`; two neighbours in any other order do less, and a last one more never does harm).
6. *Ranges.* What a worker has of the row is one range between two places where it may be cut. If every worker
   has one range of the model (no parameter is used at both ends), it gets from others each value that is read
   in its range and made before, and sends others each that is made in it and read after, with gradients back;
   else those at least that its neighbours surely make or read. One link of each such worker carries the
   largest of these M times there and back, beside a round trip (`Pieces`). So it fills its time with whole
   ranges that its best link allows, however little crosses elsewhere.
7. *Operators.* An operator runs on one worker. So of any row of n operators at the end no more than n workers
   do the work, and where every link is too slow for what crosses between two operators, they count as one.
8. *Inputs.* Who runs the first operator is sent M times what this reads of the model's inputs.

What is left out makes the bound looser, never wrong. With replicas only the speed of the whole fleet counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

from farflung.planner.bounds.gates import Block, blocks_of, longest_way
from farflung.planner.bounds.interval import CLOSE, Home, Interval
from farflung.planner.bounds.rows import Items, Pieces, Row
from farflung.planner.devices import Devices
from farflung.planner.memoize import once
from farflung.planner.objective.closed_form import FORWARD, on_the_way
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
    """No plan of `workload` with up to `replicas` pipelines is simulated to take fewer seconds a step."""
    devices = Devices.of(topology, efficiency)
    fleet = workload.microbatches * workload.work[-1] / devices.speeds.sum()
    if replicas > 1:
        trip = FORWARD * longest_way(workload, 0, len(workload)) / devices.speeds.max()
        return float(max(fleet, trip if split_backward else trip / FORWARD)) * (1 - CLOSE)
    number = topology.ids.index(topology.home.id)
    home = Home(devices.latency[number], devices.latency[:, number], devices.bandwidth[number])
    best = float(fleet)
    for known in _known(workload, recompute):
        row = Row(known.blocks, workload.microbatches, on_the_way(split_backward))
        interval = Interval(devices, row, home, known.items, known.pieces, known.fed_bytes)
        best = max(best, interval.least(best))
    return best * (1 - CLOSE)


@dataclass(frozen=True)
class _Known:
    """A row of blocks, and what of it no fleet changes."""

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
    """Rows of blocks between which at least so much crosses, for each amount: the longest rows.

    Each begins with a block of one operator.
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
    """From the first single operator on: who works before it may send it little, and come from anywhere."""
    return tuple(dropwhile(lambda block: block.workers > 1, row))


def _fed_bytes(workload: Workload, block: Block) -> float:
    """Model inputs that the one operator with work of a block reads itself, for one microbatch."""
    return float(sum(feed.bytes for feed in workload.feeds if block.stop in feed.readers))
