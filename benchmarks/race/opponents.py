"""What a stock user would choose: which cards, in which room, how many microbatches; by a small simulation.

Generous to the opponent: a card holds a stage if parameters, gradients and AdamW's state fit in 90 % of its
memory, activations need none, nothing is computed again, stages are equal to the last operation, and a line
sends at its full rate from the first byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from benchmarks.race.counting.boundary import Kind
from benchmarks.race.course import Course
from benchmarks.race.schedules import parts_of
from benchmarks.race.sleeping import BACKWARD_FACTOR

from farflung.plans import Topology, subtopology
from farflung.simulator.conditions import PAYLOAD_SHARE

BYTES_A_PARAMETER = 16
"""Of fp32 weights and gradients, and AdamW's two moments."""
ROOM = 0.9
MICROBATCHES = (4, 8, 16, 32, 64)
"""Of a step, of which the best is taken."""
SHARES: dict[Kind, float] = {"dense": 1.0, "bf16": 0.5, "int8": 0.25}
"""Of fp32's bytes; int8 has a scale of four bytes a row as well."""

Kinds = Literal["forward", "backward"]
Task = tuple[Kinds, int]
Message = tuple[int, Kinds, int]
"""Who receives it, and what it brings."""


class Chain(NamedTuple):
    """Stages in a row. Seconds of one microbatch: forward by stage, messages there and back by boundary."""

    forward_seconds: tuple[float, ...]
    there_seconds: tuple[float, ...] = ()
    back_seconds: tuple[float, ...] = ()
    latency_seconds: tuple[float, ...] = ()


class Choice(NamedTuple):
    """The cards in the order of their stages, with the simulated seconds of a step over gloo.

    `ideal_seconds` are those of the best choice of all if messages left at once.
    """

    workers: tuple[str, ...]
    microbatches: int
    seconds: float
    ideal_seconds: float


def order_of(schedule: str, stage: int, stages: int, microbatches: int) -> list[Task]:
    """What a stage does in turn; schedules other than GPipe count as 1F1B."""
    ahead = microbatches if schedule == "gpipe" else min(microbatches, stages - stage)
    order: list[Task] = [("forward", number) for number in range(ahead)]
    for number in range(microbatches):
        order.append(("backward", number))
        if ahead + number < microbatches:
            order.append(("forward", ahead + number))
    return order


def step_seconds(schedule: str, chain: Chain, microbatches: int, gloo: bool = True) -> float:
    """Seconds of a step: each link sends one message after another, each card does one task at a time.

    With `gloo` it is as torch's schedules run over it: a message leaves once its receiver has said that it
    waits for it, which it does when it has nothing else to do, behind what it sends to that neighbour on the
    same connection; and stages of 1F1B wait for what they send. Without, a message leaves at once, and no
    stage waits for it to be sent.
    """
    stages = len(chain.forward_seconds)
    tasks = [order_of(schedule, stage, stages, microbatches) for stage in range(stages)]
    run = _Run(chain, gloo, waits=gloo and schedule == "1f1b")
    at = [0] * stages
    while any(at[stage] < len(tasks[stage]) for stage in range(stages)):
        for stage in range(stages):
            while at[stage] < len(tasks[stage]) and run.does(stage, *tasks[stage][at[stage]]):
                at[stage] += 1
    return max(run.free)


class _Run:
    """A step: when each task was done and each message was sent."""

    def __init__(self, chain: Chain, gloo: bool, waits: bool) -> None:
        stages = len(chain.forward_seconds)
        self.free = [0.0] * stages
        self._chain, self._gloo, self._waits = chain, gloo, waits
        self._ready: dict[Message, float] = {}
        self._asked: dict[Message, float] = {}
        self._sent: dict[Message, float] = {}
        self._line_free: dict[tuple[int, Kinds], float] = {}
        self._last_sent: list[Message | None] = [None] * stages

    def does(self, stage: int, kind: Kinds, number: int) -> bool:
        """Do a task if what it needs is known; whether it was."""
        chain, last = self._chain, len(self.free) - 1
        start = self.free[stage]
        if stage != (0 if kind == "forward" else last):
            message = (stage, kind, number)
            self._ask(message)
            if message not in self._sent:
                return False
            start = max(start, self._sent[message] + chain.latency_seconds[_boundary(message)])
        if self._waits and (before := self._last_sent[stage]) is not None:
            if before not in self._sent:
                return False
            start = max(start, self._sent[before])
        factor = BACKWARD_FACTOR if kind == "backward" else 1
        self.free[stage] = start + factor * chain.forward_seconds[stage]
        target = stage + 1 if kind == "forward" else stage - 1
        if 0 <= target <= last:
            self._last_sent[stage] = made = (target, kind, number)
            self._ready[made] = self.free[stage]
            self._send(made)
        return True

    def _ask(self, message: Message) -> None:
        """Its receiver begins to wait for a message, and says so behind what it sends to that neighbour."""
        if message in self._asked:
            return
        stage, kind, _ = message
        other: Kinds = "backward" if kind == "forward" else "forward"
        sending = self._line_free.get((_boundary(message), other), 0.0)
        self._asked[message] = max(self.free[stage], sending)
        self._send(message)

    def _send(self, message: Message) -> None:
        """Send a message that is ready and, over gloo, asked for."""
        if message in self._sent or message not in self._ready or (self._gloo and message not in self._asked):
            return
        boundary, kind = _boundary(message), message[1]
        seconds = self._chain.there_seconds if kind == "forward" else self._chain.back_seconds
        start = max(self._ready[message], self._line_free.get((boundary, kind), 0.0))
        if self._gloo:
            start = max(start, self._asked[message] + self._chain.latency_seconds[boundary])
        self._sent[message] = self._line_free[boundary, kind] = start + seconds[boundary]


def _boundary(message: Message) -> int:
    """The boundary that a message crosses on its way to its receiver."""
    stage, kind, _ = message
    return stage - 1 if kind == "forward" else stage


def message_bytes(course: Course, kind: Kind) -> float:
    """What one microbatch sends across a boundary."""
    scales = 4 * course.microbatch_size * course.sequence if kind == "int8" else 0
    return SHARES[kind] * course.activation_bytes + scales


def chain_of(topology: Topology, course: Course, flops: float, kind: Kind) -> Chain:
    """A stage on each worker in turn; `flops` are those of a sample forward, `tflops` are sustained."""
    workers = topology.workers
    share = flops * course.microbatch_size / len(workers)
    size, pairs = message_bytes(course, kind), range(len(workers) - 1)

    def seconds(source: int, target: int) -> float:
        lines = (topology.workers[source].up_mbps, topology.workers[target].down_mbps)
        mbps = min(
            [
                topology.link(source, target).bandwidth_mbps,
                *(line for line in lines if line is not None),
            ]
        )
        return size * 8e-6 / (mbps * PAYLOAD_SHARE)

    return Chain(
        tuple(share / (worker.tflops * 1e12) for worker in workers),
        tuple(seconds(at, at + 1) for at in pairs),
        tuple(seconds(at + 1, at) for at in pairs),
        tuple(topology.link(at, at + 1).latency_ms / 1e3 for at in pairs),
    )


def holders(topology: Topology, block_bytes: float, blocks: int) -> Iterator[list[int]]:
    """Groups of workers, by number, that hold the model: of each site, and of the strongest together."""
    sites: dict[str, list[int]] = {}
    for number, worker in enumerate(topology.workers):
        sites.setdefault(worker.site, []).append(number)
    strongest = sorted(sites.values(), key=lambda site: -sum(topology.workers[one].tflops for one in site))
    for group in [*strongest, [number for site in strongest for number in site]]:
        for count in range(1, min(len(group), blocks) + 1):
            room = min(topology.workers[one].memory_gb for one in group[:count]) * 1e9 * ROOM
            if -(-blocks // count) * block_bytes <= room:
                yield group[:count]


def chosen(
    pipeline: str,
    topology: Topology,
    course: Course,
    flops: float,
    parameters: float,
    microbatches: Sequence[int] = MICROBATCHES,
) -> Choice:
    """The cards and microbatches with the shortest step over gloo for a pipeline of `schedules.PIPELINES`.

    Raises
    ------
    RuntimeError
        No group of at least two workers holds the model.
    """
    schedule, kind = pipeline.partition("-")[0], parts_of(pipeline)[1]
    turns = parts_of(pipeline)[0].stages
    block_bytes = BYTES_A_PARAMETER * parameters / course.layers
    found: list[Choice] = []
    for group in holders(topology, block_bytes, course.layers):
        part = subtopology(topology, group)
        for count in microbatches:
            if len(group) < 2 or course.batch % count:
                continue
            if turns > 1 and (count % len(group) or turns * len(group) > course.layers):
                continue
            chain = chain_of(part, msgspec.structs.replace(course, microbatches=count), flops, kind)
            over_gloo, ideal = (step_seconds(schedule, chain, count, gloo) for gloo in (True, False))
            found.append(Choice(tuple(topology.ids[number] for number in group), count, over_gloo, ideal))
    if not found:
        raise RuntimeError(f"{pipeline}: no group of at least two of {topology.name}'s cards holds the model")
    ideal = min(choice.ideal_seconds for choice in found)
    return min(found, key=lambda choice: choice.seconds)._replace(ideal_seconds=ideal)
