"""Keys of rows are the tokens that a segment was made from, whatever else comes and when."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from examples.gpt import GPT, Config

from farflung.opdag.capture import capture
from farflung.opdag.segment import Segment
from farflung.planner import plan_graph
from farflung.plans import Plan
from farflung.runtime.parity.steps import received
from farflung.runtime.row_keys import RowKeys, looked_up

KEYS = 256
TOKENS = np.arange(16, dtype=np.int64) + 250
TARGETS = np.arange(16, dtype=np.int64) + 7
PLACE = (3, 1)


def gpt() -> tuple[Plan, list[Segment], dict[str, int]]:
    batch = {"tokens": torch.arange(16).reshape(2, 8), "targets": torch.arange(16).reshape(2, 8)}
    graph = capture(GPT(Config(width=16, layers=2, heads=2, sequence=8)), batch).graph
    planned = plan_graph(graph, 2, 2, ["a", "b"])
    inputs = {one.name: one.value for one in graph.inputs if one.kind == "input"}
    return planned.plan, list(received(planned.programs, 2)), inputs


def test_embedded_inputs_are_keys_and_targets_are_not() -> None:
    _, (first, last), inputs = gpt()
    assert looked_up(first) == {inputs["tokens"]}
    assert looked_up(last) == set()


def test_keys_are_the_same_whatever_came_first() -> None:
    """One worker with the embedding and the head, which is fed tokens and targets."""
    plan, segments, inputs = gpt()
    coming = {
        "tokens": (0, inputs["tokens"], memoryview(TOKENS.tobytes())),
        "targets": (1, inputs["targets"], memoryview(TARGETS.tobytes())),
    }
    for order in itertools.permutations(coming):
        keys = RowKeys(KEYS, plan, segments)
        for name in order:
            keys.fed(PLACE, *coming[name])
        for segment in (0, 1):
            found = keys.of(PLACE, segment, rows=16)
            assert found is not None and found.tolist() == (TOKENS % KEYS).tolist()
        assert keys.of(PLACE, 0, rows=15) is None


def test_keys_received_with_a_value_apply_to_values_computed_from_it() -> None:
    plan, (first, last), inputs = gpt()
    (value,) = last.receives
    keys = RowKeys(KEYS, plan, [last])
    assert keys.of(PLACE, 1, rows=16) is None
    keys.fed(PLACE, 1, inputs["targets"], memoryview(TARGETS.tobytes()))
    assert keys.of(PLACE, 1, rows=16) is None
    keys.read(PLACE, first.number, value, last.number, TOKENS % KEYS)
    found = keys.of(PLACE, 1, rows=16)
    assert found is not None and found.tolist() == (TOKENS % KEYS).tolist()
    keys.forget(PLACE[0])
    assert keys.of(PLACE, 1, rows=16) is None
