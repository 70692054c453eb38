"""Whatever the graph of segments, their workers and the order in which messages come: the policy finishes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.schedule import Needs, Policy, Task

FEEDER = -1
Edge = tuple[int, int]


@dataclass
class World:
    """Segments on workers, edges between them, and messages that are under way."""

    edges: list[Edge]
    worker_of: list[int]
    microbatches: int
    window: int
    ran: list[Task] = field(default_factory=list)
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        count = len(self.worker_of)
        self.sources = [all(a == FEEDER for a, b in self.edges if b == s) for s in range(count)]
        needs = [
            Needs(
                segment,
                values=sum(b == segment for _, b in self.edges),
                gradients=sum(a == segment for a, _ in self.edges),
                source=self.sources[segment],
            )
            for segment in range(count)
        ]
        self.policies = {
            worker: Policy(
                [n for n in needs if self.worker_of[n.segment] == worker], self.microbatches, self.window
            )
            for worker in set(self.worker_of)
        }
        self.under_way = [
            (b, m, False) for a, b in self.edges if a == FEEDER for m in range(self.microbatches)
        ]
        self.begun = [0] * count
        self.ended = [0] * count

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
        (self.ended if task.backward else self.begun)[task.segment] += 1
        in_flight = self.begun[task.segment] - self.ended[task.segment]
        self.most_in_flight = max(self.most_in_flight, in_flight)
        self.policies[worker].finished(task)
        for a, b in self.edges:
            if not task.backward and a == task.segment:
                self.under_way.append((b, task.microbatch, False))
            if task.backward and b == task.segment and a != FEEDER:
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
    return World(edges, [draw.randrange(4) for _ in range(count)], microbatches, window)


def windows(microbatches: int) -> Iterator[int]:
    yield from {1, min(2, microbatches), microbatches}


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), microbatches=st.integers(1, 6))
def test_random_worlds_finish_in_order_within_the_window(seed: int, microbatches: int) -> None:
    for window in windows(microbatches):
        draw = random.Random(seed)
        world = random_world(draw, window, microbatches)
        while world.step(draw):
            pass
        assert all(policy.done for policy in world.policies.values())
        for segment in range(len(world.worker_of)):
            for backward in (False, True):
                order = [t.microbatch for t in world.ran if t.segment == segment and t.backward == backward]
                assert order == list(range(microbatches))
        assert world.most_in_flight <= window


def chain(length: int, microbatches: int, window: int) -> World:
    edges = [(FEEDER, 0), *((at, at + 1) for at in range(length - 1))]
    return World(edges, list(range(length)), microbatches, window)


def test_forward_and_backward_take_turns() -> None:
    """With a backlog of both, neither starves: what is sent on keeps the others at work."""
    policy = Policy([Needs(0, 1, 1, False)], 4, 4)
    for microbatch in range(2):
        policy.arrived(0, microbatch, False)
        policy.finished(Task(0, False, microbatch))
    for microbatch in range(2):
        policy.arrived(0, microbatch, True)
        policy.arrived(0, 2 + microbatch, False)
    order = []
    while (task := policy.next()) is not None:
        policy.finished(task)
        order.append((task.backward, task.microbatch))
    assert order == [(True, 0), (False, 2), (True, 1), (False, 3)]


def test_what_went_forward_goes_back_first() -> None:
    """One worker, one segment: each microbatch goes back before the next one goes forward (1F1B)."""
    world = chain(1, 3, 3)
    draw = random.Random(0)
    for _ in range(3):
        segment, microbatch, gradient = world.under_way.pop()
        world.policies[0].arrived(segment, microbatch, gradient)
    while world.step(draw):
        pass
    assert [task.backward for task in world.ran] == [False, True] * 3


def test_later_segments_come_first() -> None:
    policy = Policy([Needs(0, 0, 0, True), Needs(3, 0, 0, True)], 1, 1)
    assert policy.next() == Task(3, False, 0)


def test_a_microbatch_that_comes_early_waits_for_its_turn() -> None:
    policy = Policy([Needs(0, 1, 0, False)], 2, 2)
    policy.arrived(0, 1, False)
    assert policy.next() is None
    policy.arrived(0, 0, False)
    assert policy.next() == Task(0, False, 0)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_source_admits_no_more_than_the_window(window: int) -> None:
    """Nothing comes back, so the source stops by itself."""
    policy = Policy([Needs(0, 0, 1, True)], 8, window)
    begun = 0
    while (task := policy.next()) is not None:
        policy.finished(task)
        begun += 1
    assert begun == window
    assert not policy.done
