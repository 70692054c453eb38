"""Sums of gradients over pipelines: same bits in every order of arrival, at every segment.

Bit sums: one flipped bit is always seen, where sums of squares may not see it.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codec import Context
from farflung.codec.catalogue import sum_recipe
from farflung.plans import Sum
from farflung.runtime.sums import BITS, SumMessage, UnitSums, bit_sum
from farflung.runtime.torch_backend.optimizers.update import square_sums, words_of

SIZE = 600
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
Gradients = dict[tuple[int, int], "np.ndarray[tuple[int], np.dtype[np.float32]]"]


def random_sum(draw: random.Random, value: int, holders: list[int]) -> Sum:
    """Any groups, heads and owner."""
    groups: list[list[int]] = []
    for holder in holders:
        if groups and draw.random() < 0.5:
            draw.choice(groups).append(holder)
        else:
            groups.append([holder])
    heads = [draw.choice(group) for group in groups]
    return Sum(value, 12, groups, heads, draw.choice(heads))


def by_hand(one: Sum, gradients: Gradients) -> bytes | None:
    """The sum in the order of the groups."""
    subtotals = []
    for group in one.groups:
        subtotal = None
        for segment in group:
            mine = gradients.get((segment, one.value))
            if mine is not None:
                subtotal = mine if subtotal is None else subtotal + mine
        subtotals.append(subtotal)
    total = None
    for each in subtotals:
        if each is not None:
            total = each if total is None else total + each
    return None if total is None else total.tobytes()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_each_segment_gets_the_same_bits_in_any_order_of_arrival(seed: int, pipelines: int) -> None:
    draw = random.Random(seed)
    numbers = np.random.default_rng(seed)
    sums = [random_sum(draw, value, list(range(pipelines))) for value in range(3)]
    gradients: Gradients = {
        (segment, value): numbers.standard_normal(3).astype(np.float32) * np.float32(10.0**value)
        for segment in range(pipelines)
        for value in range(3)
        if draw.random() < 0.9
    }
    before = {key: array.tobytes() for key, array in gradients.items()}
    workers = {segment: UnitSums(sums, [segment]) for segment in range(pipelines)}
    under_way: list[SumMessage[object]] = []
    waiting = list(range(pipelines))
    while waiting or under_way:
        if waiting and (not under_way or draw.random() < 0.3):
            segment = waiting.pop(draw.randrange(len(waiting)))
            mine = {key: array for key, array in gradients.items() if key[0] == segment}
            under_way += workers[segment].begin(mine)
        else:
            message = under_way.pop(draw.randrange(len(under_way)))
            under_way += workers[message.target].receive(message)
    expected = {one.value: by_hand(one, gradients) for one in sums}
    for segment, worker in workers.items():
        assert worker.is_done
        totals = worker.take_totals()
        for value, bits in expected.items():
            total = totals[segment, value]
            assert (None if total is None else total.tobytes()) == bits
    assert {key: array.tobytes() for key, array in gradients.items()} == before


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 5),
    st.sampled_from(["int8", "int8-stochastic", "hadamard2", "topk10-bf16"]),
)
def test_coded_sums_have_the_same_bits_everywhere_and_leave_nothing_out_for_good(
    seed: int, pipelines: int, codec: str
) -> None:
    """After some steps, what was decoded and the residuals of heads and owner are what was added."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    one = random_sum(draw, 7, list(range(pipelines)))
    crosses = one.crosses(one.owner, one.owner)
    coders = {head: sum_recipe(codec).coder() for head in one.heads}
    decoded, added = np.zeros(SIZE), np.zeros(SIZE)
    for step in range(4):
        gradients: Gradients = {
            (segment, 7): numbers.standard_normal(SIZE).astype(np.float32) for segment in range(pipelines)
        }
        added += np.sum([array.astype(np.float64) for array in gradients.values()], axis=0)
        workers = {segment: UnitSums([one], [segment], is_coded=True) for segment in range(pipelines)}
        under_way: list[SumMessage[object]] = []
        for segment, worker in workers.items():
            under_way += worker.begin({(segment, 7): gradients[segment, 7]})
        written: dict[tuple[int, bool], bytes] = {}
        while under_way:
            message = under_way.pop(draw.randrange(len(under_way)))
            if one.crosses(message.source, message.target):
                context = Context.at(seed, step, 0, 7, gradient=not message.is_whole, target=message.source)
                place = (message.source, message.is_whole)
                if place not in written:
                    written[place] = coders[message.source].encode(message.payload, context).joined()
                read = np.empty(SIZE, np.float32)
                coders[message.source].decode(memoryview(written[place]), read, context)
                message = message._replace(payload=read)
            under_way += workers[message.target].receive(message)
        totals = [worker.take_totals()[segment, 7] for segment, worker in workers.items()]
        assert all(worker.is_done for worker in workers.values())
        assert len({total.tobytes() for total in totals}) == 1
        decoded += totals[0]
        if not crosses:
            assert totals[0].tobytes() == by_hand(one, gradients)
        for coder in coders.values():
            coder.commit()
    left = sum(
        np.frombuffer(coder.snapshot(), np.float32).astype(np.float64)
        for coder in coders.values()
        if coder.snapshot()
    )
    assert np.allclose(decoded + left, added, rtol=0, atol=1e-4)
    assert crosses == bool(np.any(left))


def test_two_pipelines_send_each_sum_once_in_each_direction() -> None:
    one = Sum(5, 4, [[0], [3]], [0, 3], 3)
    left, right = UnitSums([one], [0]), UnitSums([one], [3])
    (up,) = left.begin({(0, 5): np.ones(1, np.float32)})
    assert (up.source, up.target, up.is_whole) == (0, 3, False)
    assert right.receive(up) == [] and not right.is_done
    (down,) = right.begin({(3, 5): np.ones(1, np.float32)})
    assert (down.source, down.target, down.is_whole) == (3, 0, True)
    assert left.receive(down) == [] and left.is_done and right.is_done
    assert left.take_totals()[0, 5] == np.full(1, 2, np.float32) and not left.take_totals()


@given(st.sampled_from(sorted(WORDS)), st.data())
def test_one_flipped_bit_changes_it(size: int, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2 ** (8 * size) - 1), min_size=1, max_size=20))
    array = np.array(words, WORDS[size])
    at, bit = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, 8 * size - 1))
    other = array.copy()
    other[at] ^= WORDS[size](1 << bit)
    assert 0 <= bit_sum(array) < 2**BITS
    assert bit_sum(array) != bit_sum(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_does_not_depend_on_how_a_tensor_lies_in_memory(dtype: torch.dtype) -> None:
    tensor = torch.arange(12, dtype=dtype).reshape(3, 4)
    assert bit_sum(words_of(tensor.t())) == bit_sum(words_of(tensor))
    assert bit_sum(words_of(tensor.t().contiguous())) == bit_sum(words_of(tensor))
    assert bit_sum(words_of(torch.zeros(0, dtype=dtype))) == 0


def test_it_sees_a_low_bit_that_sums_of_squares_do_not() -> None:
    gradient = torch.tensor([1.0, 3e-6])
    other = gradient.clone()
    other.view(torch.int32)[1] ^= 1
    assert square_sums([gradient]) == square_sums([other]) and not torch.equal(gradient, other)
    assert bit_sum(words_of(gradient)) != bit_sum(words_of(other))
