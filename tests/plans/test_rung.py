from __future__ import annotations

import pytest

from farflung.plans.rung import Rung, codebook_of


@pytest.mark.parametrize(
    ("name", "rung", "shortest"),
    [
        ("int8", Rung("int8", "int8"), "int8"),
        ("int8/int8", Rung("int8", "int8"), "int8"),
        ("int8/int4-stochastic", Rung("int8", "int4-stochastic"), "int8/int4-stochastic"),
    ],
)
def test_a_name_is_read_as_a_rung(name: str, rung: Rung, shortest: str) -> None:
    assert Rung.of(name) == rung
    assert rung.name == shortest


def test_a_codebook_has_each_codec_once_and_not_dense() -> None:
    assert codebook_of(["dense", "int8/eden4", "dense/eden4", "bf16"]) == ("int8", "eden4", "bf16")
