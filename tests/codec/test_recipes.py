"""What every recipe that remembers keeps to, for any tensor: as `test_families`, of those that do not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.arrays import FAMILIES, KINDS, SHAPES, laid_out, numbers, stored, wide
from tests.support.examples import examples

from farflung.codec import (
    Axes,
    Blocked,
    Coder,
    Context,
    Feedback,
    Hadamard,
    Lossless,
    Plain,
    Recipe,
    Reference,
    ScalarQuantizer,
    TopK,
)
from farflung.codec.encoding.floats import Floats

KEYS = 5
AXES, DITHERED = (
    Recipe(ScalarQuantizer(0.3), axes=Axes(every=2)),
    Recipe(ScalarQuantizer(1.0, dithered=True), axes=Axes(every=2)),
)
MEANS = {
    "token mean, hadamard4": Hadamard(4, fresh=False, unbiased=False),
    "token mean, int8": Blocked(8),
    "token mean, even": ScalarQuantizer(0.3),
    "token mean, topk rows": TopK(0.3, rows=True, values=Blocked(4)),
    "token mean, lossless": Lossless(Blocked(4)),
}
RECIPES: dict[str, Recipe] = {
    "axes": AXES,
    "axes, dithered": DITHERED,
    **{name: Recipe(codec, Reference(KEYS, width=0)) for name, codec in MEANS.items()},
    "token mean, axes": Recipe(ScalarQuantizer(0.3), Reference(KEYS, width=0), Axes(every=2)),
    "token mean, axes, dithered": Recipe(
        ScalarQuantizer(1.0, dithered=True), Reference(KEYS, width=0), Axes(every=2)
    ),
}
NAMES = st.sampled_from(sorted(RECIPES))
DTYPES, LAYOUTS = ("float32", "float16", "bfloat16"), ("contiguous", "transposed", "strided", "reversed")
EPSILON = {"float32": 2**-21, "float16": 2**-9, "uint16": 2**-6}
FLOOR = {"float32": 2**-21, "float16": 1e-6, "uint16": 2**-21}
"""Of an element: means are of whole numbers of 2^-22."""
STEPS = 4


@st.composite
def steps(draw: st.DrawFn, spoilt: bool = False) -> list[tuple[Floats, Context]]:
    """A value of some steps: any shape, element type and content, each time in another layout of memory."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, scale = draw(SHAPES), 10.0 ** draw(st.integers(-4, 4))
    dtype, kind = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(KINDS))
    rows = int(np.prod(shape[:-1], dtype=int)) if shape else 1
    found = []
    for _ in range(STEPS):
        array = np.array(numbers(kind, shape, scale, random))
        if spoilt and array.size:
            places = random.integers(0, array.size, draw(st.integers(1, 3)))
            array.reshape(-1)[places] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        made = laid_out(stored(array, dtype), draw(st.sampled_from(LAYOUTS)))
        found.append((made, Context(random.integers(2**32), keys=random.integers(0, KEYS, rows))))
    return found


def width_of(array: Floats) -> int:
    return array.shape[-1] if array.ndim else 1


def mean_of_keys(rows: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """For each row the mean of all that have its key."""
    return np.stack([rows[keys == key].mean(axis=0) for key in keys]) if len(keys) else rows


def both_ends(recipe: Recipe, array: Floats) -> tuple[Coder, Coder]:
    return recipe.coder(width_of(array)), recipe.coder(width_of(array))


def carried(ends: tuple[Coder, Coder], array: Floats, context: Context) -> Floats:
    """What comes of it at the other end, which both take as applied; no longer than a receiver is told."""
    writer, reader = ends
    payload, read = writer.encode(array, context).joined(), np.full(array.shape, 7, array.dtype)
    assert len(payload) <= reader.most_bytes(array.nbytes)
    reader.decode(payload, read, Context(context.seed))
    for end in ends:
        end.commit()
    return read


@pytest.mark.slow
@given(name=NAMES, given_steps=steps())
@settings(max_examples=examples(200))
def test_any_tensor_comes_back_within_the_declared_error(
    name: str, given_steps: list[tuple[Floats, Context]]
) -> None:
    """The first step knows nothing; from the third on there are axes. Means are those of one step before."""
    recipe, first = RECIPES[name], given_steps[0][0]
    ends = both_ends(recipe, first)
    known, rate = np.zeros((KEYS, width_of(first))), np.zeros(KEYS, int)
    for array, context in given_steps:
        read = carried(ends, array, context)
        sent, got = wide(array), wide(read)
        left = sent
        if recipe.memory is not None and array.size:
            rows = got.reshape(-1, width_of(array))
            left = sent - known[context.keys].reshape(-1)
            for key in np.unique(context.keys):
                rate[key] += 1
                known[key] += (rows[context.keys == key].mean(axis=0) - known[key]) / min(rate[key], 32)
        kind = str(array.dtype)
        most = recipe.declared().worst_error * np.linalg.norm(left) * 1.01
        most += EPSILON[kind] * (np.linalg.norm(sent) + np.linalg.norm(got)) + FLOOR[kind] * array.size**0.5
        assert np.linalg.norm(got - sent) <= most


@given(name=NAMES, given_steps=steps(spoilt=True))
@settings(max_examples=100)
def test_tensors_that_are_not_finite_are_sent_uncompressed_reported_and_not_learned_from(
    name: str, given_steps: list[tuple[Floats, Context]]
) -> None:
    recipe, first = RECIPES[name], given_steps[0][0]
    ends = both_ends(recipe, first)
    for array, context in given_steps:
        encoded = ends[0].encode(array, context)
        assert encoded.exact == ("not finite" if array.size else "no smaller")
        ends[0].discard()
        np.testing.assert_array_equal(wide(carried(ends, array, context)), wide(array))
    fine = numbers("normal", first.shape, 1.0, np.random.default_rng(0))
    context = Context(1, keys=given_steps[0][1].keys)
    read = carried(ends, fine, context)
    assert np.isfinite(read).all()


@given(name=NAMES, given_steps=steps())
@settings(max_examples=examples(60))
def test_a_step_that_is_run_again_gives_the_same_bytes_wherever_it_is_run(
    name: str, given_steps: list[tuple[Floats, Context]]
) -> None:
    recipe = RECIPES[name]
    ends = both_ends(recipe, given_steps[0][0])
    for (array, context), (following, its_context) in pairwise(given_steps):
        carried(ends, array, context)
        other = recipe.coder(width_of(array))
        other.restore(ends[0].snapshot())
        again = other.encode(np.ascontiguousarray(following), its_context).joined()
        assert ends[0].encode(following, its_context).joined() == again
        ends[0].discard()


@given(name=st.sampled_from(sorted(set(FAMILIES) - {"masked", "masked, int4"})), given_steps=steps())
@settings(max_examples=100)
def test_error_feedback_conserves_mass(name: str, given_steps: list[tuple[Floats, Context]]) -> None:
    """Whatever the codec: what was sent and what is kept add up to what was given."""
    coder = Recipe(FAMILIES[name], Feedback()).coder()  # type: ignore[arg-type]
    shape = given_steps[0][0].shape
    total, sent = np.zeros(shape).reshape(-1), np.zeros(shape).reshape(-1)
    most = 0.0
    for array, context in given_steps:
        read = np.empty(shape, np.float32)
        coder.decode(coder.encode(array, context).joined(), read, context)
        coder.commit()
        total += wide(array)
        sent += wide(read)
        most += float(np.linalg.norm(wide(array)) + np.linalg.norm(wide(read)))
    stored = np.frombuffer(coder.snapshot(), np.float32).astype(np.float64)
    stored = stored if stored.size else np.zeros_like(total)
    assert np.linalg.norm(sent + stored - total) <= most * 2**-21 + 1e-18 * total.size**0.5


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4), (1,), (1, 1), (1, 1, 1, 1), (2, 0, 3, 3)])
def test_nothing_and_one_number_are_tensors_too(name: str, shape: tuple[int, ...]) -> None:
    rows = int(np.prod(shape[:-1], dtype=int)) if shape else 1
    array = np.full(shape, 1.5, np.float32)
    ends = both_ends(RECIPES[name], array)
    for step in range(STEPS):
        read = carried(ends, array, Context(step, keys=np.zeros(rows, int)))
        assert np.linalg.norm(read - array) <= 1.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_stays_infinity_whatever_is_subtracted(dtype: str) -> None:
    """A codec that writes it, too, tells nothing of it."""
    recipe = Recipe(Lossless(Plain()), Reference(KEYS, width=0))
    ends, keys = both_ends(recipe, np.empty((2, 3))), np.array([1, 2])
    for spoilt in (1.5, np.inf, -np.inf):
        array = stored(np.array([[1, spoilt, 3], [-4, 5, 6]], np.float32), dtype)
        read = carried(ends, array, Context(1, keys=keys))
        assert (wide(read) == wide(array)).all()
