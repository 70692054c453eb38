"""Whatever the graph of segments, their workers and the order in which messages come: the policy finishes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.schedule import Needs, Policy, Task, TaskKind

FEEDER = -1
Edge = tuple[int, int]


@dataclass
class World:
    """Segments on workers, edges between them, and messages that are under way."""

    edges: list[Edge]
    worker_of: list[int]
    microbatches: int
    window: int
    recomputing: list[bool]
    ran: list[Task] = field(default_factory=list)
    most_in_flight: int = 0
    most_held: int = 0

    def __post_init__(self) -> None:
        count = len(self.worker_of)
        self.sources = [all(a == FEEDER for a, b in self.edges if b == s) for s in range(count)]
        needs = [
            Needs(
                segment,
                values=sum(b == segment for _, b in self.edges),
                gradients=sum(a == segment for a, _ in self.edges),
                source=self.sources[segment],
                recomputes=self.recomputing[segment],
            )
            for segment in range(count)
        ]
        self.policies = {
            worker: Policy(
                [n for n in needs if self.worker_of[n.segment] == worker],
                range(self.microbatches),
                self.window,
            )
            for worker in set(self.worker_of)
        }
        self.under_way = [
            (b, m, False) for a, b in self.edges if a == FEEDER for m in range(self.microbatches)
        ]
        self.ran_of = {kind: [0] * count for kind in TaskKind}

    def step(self, draw: random.Random) -> bool:
        """Deliver one message or run one task, in any order; false if there is neither."""
        actions: list[int | None] = [worker for worker, p in self.policies.items() if p.next() is not None]
        if self.under_way:
            actions.append(None)
        if not actions:
            return False
        worker = draw.choice(actions)
        if worker is None:
            segment, microbatch, gradient = self.under_way.pop(draw.randrange(len(self.under_way)))
            self.policies[self.worker_of[segment]].arrived(segment, microbatch, gradient)
        else:
            self.run(worker)
        return True

    def run(self, worker: int) -> None:
        task = self.policies[worker].next()
        assert task is not None
        self.ran.append(task)
        self.ran_of[task.kind][task.segment] += 1
        begun, ended, added = (self.ran_of[kind][task.segment] for kind in TaskKind)
        assert begun >= ended >= added
        assert not self.recomputing[task.segment] or ended - added <= 1
        self.most_in_flight = max(self.most_in_flight, begun - ended)
        self.most_held = max(self.most_held, begun - added)
        self.policies[worker].finished(task)
        for a, b in self.edges:
            if task.kind is TaskKind.FORWARD and a == task.segment:
                self.under_way.append((b, task.microbatch, False))
            if task.kind is TaskKind.BACKWARD and b == task.segment and a != FEEDER:
                self.under_way.append((a, task.microbatch, True))


def random_world(draw: random.Random, window: int, microbatches: int) -> World:
    """Up to seven segments; skips; some fed by the feeder as well; in any way on up to four workers."""
    count = draw.randint(1, 7)
    edges: list[Edge] = []
    for target in range(count):
        earlier = list(range(target))
        sources = draw.sample(earlier, min(len(earlier), draw.randint(0, 3)))
        edges += [(source, target) for source in sources for _ in range(draw.randint(1, 2))]
        if not sources or draw.random() < 0.3:
            edges.append((FEEDER, target))
    workers = [draw.randrange(4) for _ in range(count)]
    return World(edges, workers, microbatches, window, [draw.random() < 0.3 for _ in range(count)])


def windows(microbatches: int) -> Iterator[int]:
    yield from {1, min(2, microbatches), microbatches}


@settings(max_examples=150)
@given(seed=st.integers(0, 10**6), microbatches=st.integers(1, 6))
def test_random_worlds_finish_in_order_within_the_window(seed: int, microbatches: int) -> None:
    for window in windows(microbatches):
        draw = random.Random(seed)
        world = random_world(draw, window, microbatches)
        while world.step(draw):
            pass
        assert all(policy.done for policy in world.policies.values())
        for segment in range(len(world.worker_of)):
            for kind in TaskKind:
                order = [t.microbatch for t in world.ran if t.segment == segment and t.kind is kind]
                assert order == list(range(microbatches))
        assert world.most_in_flight <= window
        assert world.most_held <= window


def chain(length: int, microbatches: int, window: int) -> World:
    edges = [(FEEDER, 0), *((at, at + 1) for at in range(length - 1))]
    return World(edges, list(range(length)), microbatches, window, [False] * length)


def test_forward_and_backward_take_turns() -> None:
    """With a backlog of both, neither starves: what is sent on keeps the others at work."""
    policy = Policy([Needs(0, 1, 1, False)], range(4), 4)
    for microbatch in range(2):
        policy.arrived(0, microbatch, False)
        policy.finished(Task(0, TaskKind.FORWARD, microbatch))
    for microbatch in range(2):
        policy.arrived(0, microbatch, True)
        policy.arrived(0, 2 + microbatch, False)
    order = []
    while (task := policy.next()) is not None:
        policy.finished(task)
        order.append(task.kind.value)
    assert order == ["backward", "forward", "backward", "forward", "accumulate", "accumulate"]


def test_what_went_forward_goes_back_first() -> None:
    """One worker, one segment: each microbatch goes back before the next goes forward; weights come last."""
    world = chain(1, 3, 3)
    draw = random.Random(0)
    for _ in range(3):
        segment, microbatch, gradient = world.under_way.pop()
        world.policies[0].arrived(segment, microbatch, gradient)
    while world.step(draw):
        pass
    turns = [TaskKind.FORWARD, TaskKind.BACKWARD] * 3
    assert [task.kind for task in world.ran] == [*turns, *[TaskKind.ACCUMULATE] * 3]


def test_later_segments_come_first() -> None:
    policy = Policy([Needs(0, 0, 0, True), Needs(3, 0, 0, True)], range(1), 1)
    assert policy.next() == Task(3, TaskKind.FORWARD, 0)


def test_a_microbatch_that_comes_early_waits_for_its_turn() -> None:
    policy = Policy([Needs(0, 1, 0, False)], range(2), 2)
    policy.arrived(0, 1, False)
    assert policy.next() is None
    policy.arrived(0, 0, False)
    assert policy.next() == Task(0, TaskKind.FORWARD, 0)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_source_admits_no_more_than_the_window(window: int) -> None:
    """Nothing comes back, so the source stops by itself."""
    policy = Policy([Needs(0, 0, 1, True)], range(8), window)
    begun = 0
    while (task := policy.next()) is not None:
        policy.finished(task)
        begun += 1
    assert begun == window
    assert not policy.done


def test_nothing_is_accumulated_while_something_else_is_ready() -> None:
    policy = Policy([Needs(0, 1, 0, False), Needs(1, 1, 0, False)], range(2), 2)
    for microbatch in range(2):
        policy.arrived(0, microbatch, False)
        policy.arrived(1, microbatch, False)
    order = []
    while (task := policy.next()) is not None:
        policy.finished(task)
        order.append(task.kind)
    assert order[-4:] == [TaskKind.ACCUMULATE] * 4
    assert policy.done


def test_a_forward_without_room_is_preceded_by_the_oldest_accumulation() -> None:
    """In a window of 2: two microbatches are there, one of them may be given up."""
    policy = Policy([Needs(0, 1, 0, False)], range(3), 2)
    for microbatch in range(3):
        policy.arrived(0, microbatch, False)
    order = []
    while (task := policy.next()) is not None:
        policy.finished(task)
        order.append((task.kind.value, task.microbatch))
    assert order[:4] == [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)]
    assert order[4:6] == [("accumulate", 0), ("forward", 2)]
    assert order[6:] == [("backward", 2), ("accumulate", 1), ("accumulate", 2)]


def test_an_evaluation_pass_has_nothing_to_accumulate() -> None:
    policy = Policy([Needs(0, 0, 0, True)], range(2), 1, train=False)
    order = []
    while (task := policy.next()) is not None:
        policy.finished(task)
        order.append(task.kind)
    assert order == [TaskKind.FORWARD, TaskKind.BACKWARD] * 2
    assert policy.done
