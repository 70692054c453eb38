from __future__ import annotations

import msgspec
import pytest

from farflung.codec import (
    Axes,
    Bfloat16,
    Blocked,
    Hadamard,
    Lossless,
    Masked,
    Plain,
    Recipe,
    Reference,
    ScalarQuantizer,
    TopK,
)
from farflung.codec.catalogue import EXAMPLES, KEYS, declared, gives_mask, needs_mask, recipe
from farflung.errors import CodecError
from farflung.plans.codec_pair import CodecName


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("dense", Plain()),
        ("bf16", Bfloat16()),
        ("int8", Blocked(8)),
        ("int4-stochastic", Blocked(4, stochastic=True)),
        ("hadamard3", Hadamard(3, fresh=False, unbiased=False)),
        ("eden2", Hadamard(2, fresh=True, unbiased=True)),
        ("topk0.1-bf16", TopK(0.001)),
        ("row-topk30-int4", TopK(0.3, rows=True, values=Blocked(4))),
        ("masked30-int4", Masked(0.3, Blocked(4, stochastic=True))),
        ("bf16+zstd", Lossless(Bfloat16())),
        ("topk100-int8+zstd", Lossless(TopK(1.0, values=Blocked(8)))),
    ],
)
def test_a_name_means_a_recipe(name: str, codec: object) -> None:
    assert recipe(name) == Recipe(codec)  # type: ignore[arg-type]
    assert declared(name).ratio >= 0.99
    assert msgspec.convert(name, CodecName) == name


def test_even_levels_may_stand_along_axes() -> None:
    assert recipe("even30") == Recipe(ScalarQuantizer(0.3))
    assert recipe("even100-dithered") == Recipe(ScalarQuantizer(1.0, dithered=True))
    assert recipe("axes20") == Recipe(ScalarQuantizer(0.2), axes=Axes())
    assert recipe("axes150-dithered") == Recipe(ScalarQuantizer(1.5, dithered=True), axes=Axes())
    assert declared("axes20").ratio > 1.5 * declared("even20").ratio
    assert declared("axes20").usual_error == declared("even20").usual_error


def test_any_of_them_may_be_less_the_mean_of_each_rows_token() -> None:
    assert recipe("token-mean:int8+zstd") == Recipe(Lossless(Blocked(8)), Reference(KEYS, 0))
    assert recipe("token-mean:axes34") == Recipe(ScalarQuantizer(0.34), Reference(KEYS, 0), Axes())
    assert 0.9 < declared("token-mean:axes34").ratio / declared("axes34").ratio < 1
    with pytest.raises(CodecError, match="too large"):
        recipe("token-mean:int8").coder(2**21)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "even0",
        "axes801",
        "axes",
        "axes20+zstd",
        "int9",
        "hadamard5",
        "topk0-bf16",
        "topk101-bf16",
        "topk1-fp8",
        "int8+gzip",
        "bf16+zstd+zstd",
        "token-mean:",
        "token-mean:dense",
        "token-mean:int9",
        "token-mean:token-mean:int8",
    ],
)
def test_an_unknown_name_is_one_line_with_those_there_are(name: str) -> None:
    with pytest.raises(CodecError, match="there is no codec") as raised:
        recipe(name)
    assert all(known in str(raised.value) for known in ("int4-stochastic", "int8-stochastic"))
    assert "\n" not in str(raised.value)
    names = str(raised.value).partition("largest first: ")[2].partition(" and others")[0].split(", ")
    assert [declared(one).bits for one in names] == sorted(
        (declared(one).bits for one in names), reverse=True
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [("int9", "int8"), ("edens2", "eden2"), ("topk0-bf16", "topk1-bf16"), ("axes", "axes20")],
)
def test_a_mistyped_name_gets_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(CodecError, match=rf"there is no codec '{name}': did you mean {meant}\? ") as raised:
        recipe(name)
    assert "docs/reference/codecs.md" in str(raised.value) and len(str(raised.value)) < 240


def test_the_examples_that_an_error_gives_are_codecs() -> None:
    assert all(recipe(name) for name in EXAMPLES)


def test_which_codecs_give_a_mask_and_which_need_one() -> None:
    assert gives_mask("row-topk30-int4")
    assert gives_mask("topk1-bf16+zstd")
    assert needs_mask("masked30-int4+zstd")
    assert not needs_mask("row-topk30-int4")
    assert not gives_mask("int8")
