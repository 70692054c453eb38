from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farflung.codec import Context
from farflung.codec.encoding.floats import PIECE, as_float32, to_bfloat16
from farflung.codec.encoding.noise import Noise

PLACES = st.tuples(*[st.integers(0, 1000)] * 5, st.booleans(), st.booleans())


def seed_at(place: tuple[int, int, int, int, int, bool, bool]) -> int:
    job, step, microbatch, value, target, train, gradient = place
    return Context.at(job, step, microbatch, value, target=target, train=train, gradient=gradient).seed


@given(a=PLACES, b=PLACES)
def test_other_places_have_other_seeds(a: tuple, b: tuple) -> None:
    assert (seed_at(a) == seed_at(b)) == (a == b)


def test_noise_is_fair_and_repeats() -> None:
    signs = np.concatenate([Noise(7, 10 * PIECE).signs(PIECE) for _ in range(2)])
    assert set(np.unique(signs)) == {-1.0, 1.0}
    np.testing.assert_array_equal(signs[:PIECE], signs[PIECE:])
    assert abs(signs.mean()) < 5 / PIECE**0.5
    dither = Noise(8, PIECE).dither(PIECE)
    assert -0.5 < dither.min() < -0.499 and 0.499 < dither.max() < 0.5
    assert abs(dither.mean()) < 5 * 0.29 / PIECE**0.5


def test_noise_is_drawn_anew_for_every_piece() -> None:
    noise = Noise(7, 10 * PIECE)
    first, second = noise.signs(PIECE).copy(), noise.signs(PIECE)
    assert abs((first * second).mean()) < 5 / PIECE**0.5


@given(st.floats(width=32))
def test_bfloat16_is_rounded_to_the_nearest_even(number: float) -> None:
    numbers = np.array([number], np.float32)
    bits = np.empty(1, np.uint16)
    finite = to_bfloat16(numbers, bits)
    read = as_float32(bits)[0]
    if np.isnan(number):
        assert np.isnan(read)
    elif abs(number) < 3.38e38:
        assert abs(float(read) - number) <= max(abs(number) * 2.0**-8, 2.0**-134)
    assert finite == np.isfinite(read)
