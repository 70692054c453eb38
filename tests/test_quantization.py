"""Values become codes and scales as QLoRA says, each as near to its own as the layout allows."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from farflung.errors import WeightsError
from farflung.quantization import (
    BLOCKS,
    FORMATS,
    NF4_LEVELS,
    block_bytes,
    quantize,
    quantized_bytes,
    values_in,
)
from farflung.runtime.torch_backend.quantized import dequantized
from farflung.weights.quantizing import PIECE_VALUES, quantize_stored

Floats = NDArray[np.float32]
BLOCK = max(BLOCKS.values())
"""Whole blocks of each format."""


def blocks_of(values: Floats, form: str) -> NDArray[np.uint8]:
    out = np.empty(quantized_bytes(values.size, form), np.uint8)
    quantize(values.reshape(-1), form, out)
    return out.reshape(-1, block_bytes(form))


def read_back(blocks: NDArray[np.uint8], form: str) -> Floats:
    """What blocks stand for, one value after the other in plain Python: the layout, written again."""
    found = []
    for block, scale in zip(blocks, scales_of(blocks, form), strict=True):
        if form == "int8":
            found += [np.float32(code) * scale for code in block[4:].astype(np.int8)]
            continue
        for byte in block[2:]:
            found += [np.float32(NF4_LEVELS[code]) * scale for code in (byte & 15, byte >> 4)]
    return np.array(found, np.float32)


def scales_of(blocks: NDArray[np.uint8], form: str) -> Floats:
    """The scale of each block."""
    if form == "int8":
        return np.frombuffer(blocks[:, :4].tobytes(), "<f4")
    halves = np.frombuffer(blocks[:, :2].tobytes(), "<u2").astype("<u4")
    return (halves << np.uint32(16)).view("<f4")


@pytest.mark.parametrize(("form", "bits"), [("int8", 8.5), ("nf4", 4.5)])
def test_a_value_takes_as_many_bits_as_its_layout_says(form: str, bits: float) -> None:
    assert quantized_bytes(1024, form) * 8 / 1024 == bits
    assert values_in(quantized_bytes(640, form), form) == 640


def test_levels_are_the_quantiles_of_a_normal_distribution_that_the_paper_lists() -> None:
    """Equation 4 of arXiv 2305.14314: one side of eight quantiles below zero, one of nine above."""
    offset = 0.5 * (1 / 32 + 1 / 30)
    above, below = ([NormalDist().inv_cdf(p) for p in np.linspace(1 - offset, 0.5, n)[:-1]] for n in (9, 8))
    levels = np.sort(np.array([*above, 0.0, *(-one for one in below)]))
    assert np.allclose(levels / levels.max(), NF4_LEVELS, atol=2e-6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(FORMATS), st.floats(1e-30, 1e30))
def test_every_value_is_rounded_to_the_nearest_one_that_its_block_can_say(
    seed: int, form: str, scale: float
) -> None:
    values = (np.random.default_rng(seed).standard_normal(2 * BLOCK) * scale).astype(np.float32)
    made = read_back(blocks_of(values, form), form)
    steps = np.arange(-127.0, 128.0) if form == "int8" else np.array(NF4_LEVELS, np.float64)
    of_each = (
        values.reshape(-1, BLOCKS[form]),
        made.reshape(-1, BLOCKS[form]),
        scales_of(blocks_of(values, form), form),
    )
    for block, own, size in zip(*of_each, strict=True):
        sayable = steps * np.float64(size)
        best = np.abs(block[:, None].astype(np.float64) - sayable).min(axis=1)
        assert (np.abs(block.astype(np.float64) - own) <= best + 1e-6 * np.abs(block).max()).all()


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_and_the_smallest_numbers_become_zeros_or_themselves(form: str) -> None:
    values = np.zeros(2 * BLOCK, np.float32)
    values[BLOCK:] = 1e-45
    made = read_back(blocks_of(values, form), form)
    assert not made[:BLOCK].any() and (np.abs(made[BLOCK:]) <= np.float32(1e-45)).all()


@pytest.mark.parametrize("form", FORMATS)
def test_a_machine_that_counts_the_smallest_numbers_as_zero_makes_the_same_bytes_and_values(
    form: str,
) -> None:
    """Blocks of every size from 2^-149 on, and some whose values differ by up to 2^60."""
    draw = np.random.default_rng(4)
    exponents = np.repeat(np.arange(-149, -80, 0.25), BLOCK)
    exponents = np.concatenate([exponents, draw.uniform(-149, -89, 200 * BLOCK)])
    values = (draw.uniform(-1, 1, exponents.size) * 2.0**exponents).astype(np.float32)
    blocks = blocks_of(values, form)
    held = torch.from_numpy(blocks)
    meant = dequantized(held, form, torch.float32).numpy().tobytes()
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot count them as zero")
    try:
        flushed, read = blocks_of(values, form), dequantized(held, form, torch.float32).numpy().tobytes()
    finally:
        torch.set_flush_denormal(False)
    assert flushed.tobytes() == blocks.tobytes() and read == meant


@given(st.integers(0, 2**32 - 1))
def test_the_scale_of_nf4_is_at_least_as_good_as_each_that_is_tried(seed: int) -> None:
    """Sums of float64 here: scales that are equally good but for rounding may be told apart otherwise."""
    draw = np.random.default_rng(seed)
    values = draw.standard_t(3, 8 * BLOCKS["nf4"]).astype(np.float32)
    rows = values.reshape(-1, BLOCKS["nf4"]).astype(np.float64)
    own = ((rows - read_back(blocks_of(values, "nf4"), "nf4").reshape(rows.shape)) ** 2).sum(axis=1)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    for share in (0.98, 0.9, 0.82, 1.06, -0.98, -0.9, -0.82, -1.06):
        scale = (share * largest).astype(np.float32)
        rounded = torch.from_numpy(scale).bfloat16().float().numpy().astype(np.float64)
        sayable = rounded[..., None] * np.array(NF4_LEVELS)
        error = (np.abs(rows[..., None] - sayable).min(axis=2) ** 2).sum(axis=1)
        assert (own <= error * (1 + 1e-5) + 1e-12).all()


def test_nf4_loses_less_than_by_the_largest_magnitude_of_64_values() -> None:
    """The layout of QLoRA, which takes 4.5 bits a value, too: 0.0085 of normal values' square sum."""
    values = np.random.default_rng(5).standard_normal(2**15).astype(np.float32)
    error = read_back(blocks_of(values, "nf4"), "nf4") - values
    assert (error**2).sum() / (values**2).sum() < 0.0064


def test_the_largest_numbers_have_finite_scales() -> None:
    values = np.full(BLOCKS["nf4"], np.finfo(np.float32).max, np.float32)
    values[::2] *= -1
    blocks = blocks_of(values, "nf4")
    assert np.isfinite(read_back(blocks, "nf4")).all()
    assert np.array_equal(
        dequantized(torch.from_numpy(blocks), "nf4", torch.float32).numpy().reshape(-1),
        read_back(blocks, "nf4"),
    )


@pytest.mark.parametrize("form", FORMATS)
def test_blocks_are_those_of_each_row_alone(form: str) -> None:
    values = np.random.default_rng(0).standard_normal((70, 2 * BLOCK)).astype(np.float32)
    whole = blocks_of(values, form).reshape(70, -1)
    for row, packed in zip(values, whole, strict=True):
        assert np.array_equal(blocks_of(row, form).reshape(-1), packed)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused(form: str, wrong: float) -> None:
    values = np.ones(3 * BLOCK, np.float32)
    values[100] = wrong
    with pytest.raises(WeightsError, match="infinite or not a number"):
        blocks_of(values, form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_stored_floats_are_quantized_piece_by_piece_as_in_one(kind: str, form: str) -> None:
    values = np.random.default_rng(1).standard_normal(PIECE_VALUES + 3 * BLOCK).astype(np.float32)
    if kind == "float16":
        stored, exact = values.astype("<f2").tobytes(), values.astype("<f2").astype(np.float32)
    elif kind == "bfloat16":
        words = (values.view(np.uint32) >> 16).astype("<u2")
        stored, exact = words.tobytes(), (words.astype(np.uint32) << 16).view(np.float32)
    else:
        stored, exact = values.tobytes(), values
    memory = memoryview(bytearray(quantized_bytes(values.size, form)))
    quantize_stored(memoryview(stored), kind, form, memory)
    assert bytes(memory) == blocks_of(exact, form).tobytes()
