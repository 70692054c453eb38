"""Arrays of every kind that a codec may meet, and the codecs that meet them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from farflung.codec import Bfloat16, Blocked, Codec, Hadamard, Lossless, Masked, Plain, ScalarQuantizer, TopK
from farflung.codec.encoding.floats import Floats, as_float32, flat, to_bfloat16

FAMILIES: dict[str, Codec] = {
    "plain": Plain(),
    "bfloat16": Bfloat16(),
    "int8": Blocked(8),
    "int8 stochastic": Blocked(8, stochastic=True),
    "int4": Blocked(4),
    "int4 stochastic": Blocked(4, stochastic=True),
    **{f"hadamard{bits}": Hadamard(bits) for bits in (1, 2, 3, 4)},
    "hadamard4 least error": Hadamard(4, fresh=False, unbiased=False),
    "even": ScalarQuantizer(0.3),
    "even, dithered": ScalarQuantizer(1.0, dithered=True),
    "topk": TopK(0.1),
    "topk, int8": TopK(0.25, values=Blocked(8)),
    "topk rows": TopK(0.3, rows=True, values=Blocked(4)),
    "masked": Masked(values=Bfloat16()),
    "masked, int4": Masked(),
    "lossless": Lossless(),
    "lossless plain": Lossless(Plain()),
    "lossless int8": Lossless(Blocked(8)),
    "lossless topk": Lossless(TopK(0.1)),
}

KINDS = ("normal", "heavy", "zeros", "constant", "sparse", "spike", "subnormal")
SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    st.integers(0, 700).map(lambda size: (size,)),
    st.tuples(st.integers(1, 5), st.integers(1, 300)),
)


def numbers(kind: str, shape: tuple[int, ...], scale: float, random: np.random.Generator) -> np.ndarray:
    """Float32 of a kind; float16 holds them, too."""
    drawn = random.standard_normal(shape)
    if kind == "heavy":
        drawn = drawn**5
    elif kind == "zeros":
        drawn = np.zeros(shape)
    elif kind == "constant":
        drawn = np.full(shape, drawn.sum() or 1.0)
    elif kind == "sparse":
        drawn = drawn * (random.random(shape) < 0.05)
    elif kind == "spike":
        drawn = drawn * np.where(random.random(shape) < 0.01, 1000, 0.001)
    elif kind == "subnormal":
        drawn = drawn * 1e-41 / scale
    return np.clip(drawn * scale, -6e4, 6e4).astype(np.float32)


def stored(array: np.ndarray, dtype: str) -> Floats:
    """The same numbers in float32, float16 or bfloat16."""
    if dtype == "bfloat16":
        bits = np.empty(array.shape, np.uint16)
        to_bfloat16(np.ascontiguousarray(array).reshape(-1), bits.reshape(-1))
        return bits
    return array.astype(dtype)


def laid_out(array: Floats, layout: str) -> Floats:
    """The same array in memory of another order."""
    if layout == "transposed":
        return array.T.copy().T
    if layout == "strided" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "reversed" and array.ndim:
        return array[::-1].copy()[::-1]
    return array


@st.composite
def tensors(draw: st.DrawFn) -> Floats:
    """A tensor of any shape, element type, layout and kind of content."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind, shape = draw(st.sampled_from(KINDS)), draw(SHAPES)
    array = numbers(kind, shape, 10.0 ** draw(st.integers(-4, 4)), random)
    made = stored(array, draw(st.sampled_from(["float32", "float16", "bfloat16"])))
    return laid_out(made, draw(st.sampled_from(["contiguous", "transposed", "strided", "reversed"])))


def wide(array: Floats) -> np.ndarray:
    """The numbers in float64, flat."""
    return as_float32(flat(array)).astype(np.float64)
