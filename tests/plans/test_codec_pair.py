from __future__ import annotations

import pytest

from farflung.plans.codec_pair import CodecPair, codebook_of


@pytest.mark.parametrize(
    ("name", "codec_pair", "shortest"),
    [
        ("int8", CodecPair("int8", "int8"), "int8"),
        ("int8/int8", CodecPair("int8", "int8"), "int8"),
        ("int8/int4-stochastic", CodecPair("int8", "int4-stochastic"), "int8/int4-stochastic"),
    ],
)
def test_a_name_is_read_as_a_codec_pair(name: str, codec_pair: CodecPair, shortest: str) -> None:
    assert CodecPair.of(name) == codec_pair
    assert codec_pair.name == shortest


def test_a_codebook_lists_each_codec_once_without_dense() -> None:
    assert codebook_of(["dense", "int8/eden4", "dense/eden4", "bf16"]) == ("int8", "eden4", "bf16")
