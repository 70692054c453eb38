"""The feeder: order, pace and honesty, against links that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.client.run.feeder import Feeder
from farflung.client.run.microbatches import Microbatch
from farflung.errors import ProtocolError
from farflung.opdag.graph import Graph, Input, ValueType
from farflung.plans import FEEDER, Edge, Pipeline, Placement, Plan
from farflung.schedule import Unit
from farflung.transport.wire.headers import ValueHeader


class RememberingLink:
    """A link that sends nothing; it keeps what it was given, bytes copied at the end."""

    def __init__(self) -> None:
        self.posted: list[tuple[ValueHeader, memoryview]] = []

    def post(self, header: ValueHeader, buffer: memoryview) -> None:
        self.posted.append((header, buffer))


def graph() -> Graph:
    types = [ValueType("int64", [2]), ValueType("int64", [2]), ValueType("float32", [])]
    inputs = [Input(0, "input", "tokens"), Input(1, "input", "targets")]
    return Graph(1, "x", types, inputs, [], 2, {}, {}, {})


def plan(window: int) -> Plan:
    """Segment 0 on `a` reads the tokens, segment 1 on `b` reads both."""
    edges = [
        Edge(0, FEEDER, 0, 16, False),
        Edge(0, FEEDER, 1, 16, False),
        Edge(1, FEEDER, 1, 16, False),
    ]
    return Plan([Placement(0, ["a"], 1, 1, 1), Placement(1, ["b"], 1, 1, 1)], edges, 4, window)


async def batches(count: int) -> AsyncIterator[Microbatch]:
    unit = Unit(0, True, 0, count)
    for number in range(count):
        tensors = {"tokens": torch.tensor([number, 1]), "targets": torch.tensor([number, 2])}
        yield Microbatch(unit, number, tensors)


def answer(segment: int, microbatch: int, value: int, **changes: object) -> ValueHeader:
    fields = {
        "job": "j",
        "attempt": 1,
        "unit": 0,
        "microbatch": microbatch,
        "source": segment,
        "target": FEEDER,
        "value": value,
        "gradient": True,
        "codec": 0,
        "bytes": 0,
    }
    return ValueHeader(**{**fields, **changes})  # type: ignore[arg-type]


class Setting:
    def __init__(self, window: int = 1) -> None:
        self.links = {"a": RememberingLink(), "b": RememberingLink()}
        self.feeder = Feeder("j", 1, plan(window), graph(), self.links)

    def fed(self, worker: str) -> list[tuple[int, int]]:
        return [(header.microbatch, header.value) for header, _ in self.links[worker].posted]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_each_segment_gets_what_it_reads_in_order() -> None:
    async def scenario() -> None:
        setting = Setting(window=2)
        await setting.feeder.run(batches(4))
        assert setting.fed("a") == [(0, 0), (1, 0), (2, 0), (3, 0)]
        assert setting.fed("b") == [(m, value) for m in range(4) for value in (0, 1)]
        header, buffer = setting.links["b"].posted[-1]
        assert header == ValueHeader("j", 1, 0, 3, FEEDER, 1, 1, False, 0, 16)
        assert bytes(buffer) == torch.tensor([3, 2]).numpy().tobytes()

    asyncio.run(scenario())


def test_each_pipeline_is_fed_two_windows_of_its_own_ahead() -> None:
    """The second pipeline, whose window is narrower, doesn't hold up the first before it is full itself."""

    async def scenario() -> None:
        placements = [Placement(0, ["a"], 1, 1, 1), Placement(1, ["b"], 1, 1, 1)]
        edges = [Edge(0, FEEDER, 0, 16, False), Edge(0, FEEDER, 1, 16, False)]
        two = Plan(placements, edges, 12, 2, pipelines=[Pipeline(1, 6), Pipeline(1, 6, 1)])
        setting = Setting()
        feeder = Feeder("j", 1, two, graph(), setting.links)
        task = asyncio.create_task(feeder.run(batches(12)))
        await settle()
        assert [len(setting.fed(worker)) for worker in "ab"] == [3, 2]
        for microbatch, _ in setting.fed("b"):
            feeder.finished("b", answer(1, microbatch, 0))
        await settle()
        assert [len(setting.fed(worker)) for worker in "ab"] == [4, 4]
        task.cancel()

    asyncio.run(scenario())


def test_no_segment_is_fed_more_than_two_windows_ahead() -> None:
    async def scenario() -> None:
        setting = Setting(window=1)
        task = asyncio.create_task(setting.feeder.run(batches(4)))
        await settle()
        assert setting.fed("a") == [(0, 0), (1, 0)]
        setting.feeder.finished("b", answer(1, 0, 0))
        setting.feeder.finished("a", answer(0, 0, 0))
        await settle()
        # Segment 1 has answered for one of its two values: microbatch 0 is not finished there.
        assert setting.fed("a")[-1] == (2, 0) and setting.fed("b")[-1] == (1, 1)
        setting.feeder.finished("b", answer(1, 0, 1))
        await settle()
        assert setting.fed("b")[-1] == (2, 1)
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("worker", "header"),
    [
        ("a", answer(0, 3, 0)),
        ("a", answer(0, 0, 1)),
        ("b", answer(0, 0, 0)),
        ("a", answer(1, 0, 0)),
        ("a", answer(0, 0, 0, bytes=4)),
        ("a", answer(0, 0, 0, gradient=False)),
        ("a", answer(0, 0, 0, target=1)),
        ("a", answer(0, 0, 0, attempt=2)),
        ("a", answer(0, 0, 0, job="other")),
    ],
)
def test_an_answer_for_what_was_not_fed_is_refused(worker: str, header: ValueHeader) -> None:
    async def scenario() -> None:
        setting = Setting()
        task = asyncio.create_task(setting.feeder.run(batches(4)))
        await settle()
        with pytest.raises(ProtocolError):
            setting.feeder.finished(worker, header)
        setting.feeder.finished("a", answer(0, 0, 0))
        with pytest.raises(ProtocolError, match="before"):
            setting.feeder.finished("a", answer(0, 0, 0))
        task.cancel()

    asyncio.run(scenario())


@settings(max_examples=50)
@given(st.integers(1, 3), st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order_of_answers_feeds_everything_within_the_limit(
    window: int, count: int, chance: object
) -> None:
    async def scenario() -> None:
        setting = Setting(window)
        task = asyncio.create_task(setting.feeder.run(batches(count)))
        open_answers: list[tuple[str, ValueHeader]] = []
        taken = {"a": 0, "b": 0}
        while not task.done() or open_answers:
            await settle()
            for worker, link in setting.links.items():
                for header, _ in link.posted[taken[worker] :]:
                    open_answers.append((worker, answer(header.target, header.microbatch, header.value)))
                taken[worker] = len(link.posted)
            for worker in setting.links:
                outstanding = {header.microbatch for name, header in open_answers if name == worker}
                assert len(outstanding) <= 2 * window
            chance.shuffle(open_answers)  # type: ignore[attr-defined]
            if open_answers:
                setting.feeder.finished(*open_answers.pop())
        assert len(setting.fed("a")) == count and len(setting.fed("b")) == 2 * count

    asyncio.run(scenario())


def test_how_far_a_unit_is_shows_at_the_first_segment_that_is_fed() -> None:
    async def scenario() -> None:
        told: list[int] = []
        links = {"a": RememberingLink(), "b": RememberingLink()}
        feeder = Feeder("j", 1, plan(2), graph(), links, lambda unit, microbatches: told.append(microbatches))
        await feeder.run(batches(2))
        feeder.finished("b", answer(1, 0, 0))
        feeder.finished("b", answer(1, 0, 1))
        assert told == []
        for microbatch in (0, 1):
            feeder.finished("a", answer(0, microbatch, 0))
        assert told == [1, 2]

    asyncio.run(scenario())
