from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farflung.runtime.training import microbatch_seed
from farflung.seeds import mix

SMALL = st.integers(0, 1000)


def test_mixing_is_splitmix64() -> None:
    """The generator's published first outputs for seed 1234567 (Vigna's splitmix64.c)."""
    assert [mix(1234567, n) for n in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(state=st.integers(0, 2**64 - 1), number=st.integers(0, 2**40))
def test_seeds_are_64_bit(state: int, number: int) -> None:
    assert 0 <= mix(state, number) < 2**64


@given(
    a=st.tuples(SMALL, st.booleans(), SMALL, SMALL, SMALL),
    b=st.tuples(SMALL, st.booleans(), SMALL, SMALL, SMALL),
)
def test_other_coordinates_give_other_seeds(
    a: tuple[int, bool, int, int, int], b: tuple[int, bool, int, int, int]
) -> None:
    seeds = [mix(microbatch_seed(*where[:4]), where[4]) for where in (a, b)]
    assert (seeds[0] == seeds[1]) == (a == b)
