"""What codecs did to tensors, as workers see it, and that looking changes nothing."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.runtime.test_coding import WORKERS, same, side, train

from farflung.codec import Context
from farflung.codec.catalogue import declared, recipe
from farflung.runtime.parcel import CodecSample
from farflung.runtime.sample import EVERY, FIRST_STEPS, is_sampled, samples
from farflung.schedule import Unit

NAMES = ("bf16", "int8", "int4-stochastic", "row-topk30-int4", "masked30-int4", "axes20")
RECIPES = {name: recipe(name) for name in NAMES}


def found(array: np.ndarray, used: str = "", gradient: bool = False) -> dict[str, CodecSample]:
    given = None
    if used:
        coder = RECIPES[used].coder(array.shape[-1])
        given = used, coder, coder.encode(array, Context(5)).joined()
    return {one.codec: one for one in samples(array, gradient, Context(5), given, RECIPES)}


def test_every_codec_that_remembers_nothing_is_tried_and_what_was_used() -> None:
    array = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    tried = found(array, "axes20")
    assert set(tried) == {*NAMES} - {"masked30-int4"}
    assert {name for name, one in tried.items() if one.used} == {"axes20"}
    for name in ("bf16", "int8", "int4-stochastic", "row-topk30-int4", "axes20"):
        assert tried[name].error == pytest.approx(declared(name).usual_error, rel=0.25)
        assert tried[name].saturated < 0.01 and tried[name].dead == 0
    assert tried["bf16"].ratio == pytest.approx(2, rel=0.01)
    assert tried["int8"].ratio == pytest.approx(declared("int8").ratio, rel=0.01)


def test_rows_that_are_lost_and_numbers_that_are_cut_off_show() -> None:
    array = np.zeros((4, 256), np.float32)
    array[0], array[1:, :8] = 1000, 1
    recipes = {"topk10-bf16": recipe("topk10-bf16")}
    (one,) = samples(array, False, Context(), None, recipes)
    assert one.dead == pytest.approx(0.75)


@pytest.mark.parametrize("array", [np.zeros((3, 8)), np.full((3, 8), np.nan), np.zeros((0, 8))])
def test_of_nothing_and_of_what_no_codec_writes_there_is_nothing_to_say(array: np.ndarray) -> None:
    assert not found(array.astype(np.float32))


@pytest.mark.parametrize("largest", [1e-30, 1e18, 1e20, 3.4e38])
def test_samples_of_diverging_numbers_stay_within_the_limits(largest: float) -> None:
    """In float32 their squares are infinite, and bf16 rounds the largest up to infinity."""
    array = np.random.default_rng(1).uniform(-1, 1, (64, 256)).astype(np.float32)
    array *= np.float32(largest)
    array[0, 0] = largest
    tried = found(array)
    assert set(tried) == {*NAMES} - {"masked30-int4", "axes20"}
    for one in tried.values():
        told = msgspec.msgpack.encode(one)
        assert msgspec.msgpack.decode(told, type=CodecSample) == one
    if largest < 1e30:
        assert tried["bf16"].error == pytest.approx(declared("bf16").usual_error, rel=0.5)


def test_the_first_steps_and_some_later_ones_are_sampled_and_no_evaluation() -> None:
    steps = [step for step in range(120) if is_sampled(Unit(step, True, step, 4), 0)]
    assert steps == [*range(FIRST_STEPS), EVERY, 2 * EVERY]
    assert not is_sampled(Unit(0, False, 0, 4), 0) and not is_sampled(Unit(0, True, 0, 4), 1)


@pytest.mark.parametrize(
    "rung", ["token-mean:axes30/axes100-dithered", "row-topk30-int4/masked30-int4", "dense"]
)
def test_looking_changes_no_bit_of_a_run(rung: str) -> None:
    blind, seeing = (side("gpt", rung, "int8/int4-stochastic", sample=on) for on in (False, True))
    assert train(seeing, "gpt", range(3)) == train(blind, "gpt", range(3))
    assert same(seeing.state, blind.state)
    told = seeing.pipeline.take_sent()
    assert len(told) == 2 * (WORKERS - 1)
    for sent in told.values():
        tried = {one.codec for one in sent.samples}
        assert {"int8", "int4-stochastic"} <= tried
        assert all(0 <= one.error <= 2 and one.ratio > 0.9 for one in sent.samples)
        assert any(one.used for one in sent.samples) == (rung != "dense")
        assert (sent.coding_seconds > 0) == (rung != "dense")
    assert not any(sent.samples for sent in blind.pipeline.take_sent().values())
