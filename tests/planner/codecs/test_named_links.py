"""Codecs as users fix them: for every link, for some, and what no plan can keep."""

from __future__ import annotations

import pytest
from tests.planner.codecs.chains import chain

from farflung.errors import PlanError
from farflung.planner.codecs.wishes import fixed, require_known, unused
from farflung.plans import CodecWishes, LinkWish


def test_named_links_keep_their_codec_pair_and_dense_links_are_not_listed() -> None:
    wishes = CodecWishes("int8/int4-stochastic", (LinkWish("b", "a", "dense"), LinkWish("b", "c", "eden4")))
    codecs = {(link.source, link.target): link for link in fixed(chain(["a", "b", "c"]), wishes)}
    assert {pair: link.codec for pair, link in codecs.items()} == {
        ("a", "b"): "int8/int4-stochastic",
        ("b", "c"): "eden4",
        ("c", "b"): "int8/int4-stochastic",
    }
    assert codecs["a", "b"].ratio == pytest.approx(32 / 8.0625)
    assert codecs["c", "b"].ratio == pytest.approx(32 / 4.125)
    assert fixed(chain(["a", "b", "c"]), CodecWishes()) == ()


def test_a_lossless_codec_is_kept_without_a_declared_ratio() -> None:
    (first, _) = fixed(chain(["a", "b"]), CodecWishes("dense+zstd"))
    assert (first.codec, first.ratio) == ("dense+zstd", 1.0)


@pytest.mark.parametrize(
    ("wishes", "codebook", "words"),
    [
        (CodecWishes("int9"), ("int9",), "there is no codec 'int9'"),
        (CodecWishes("int8/bf16"), ("int8",), "the codec bf16 is not in the job's codebook"),
        (
            CodecWishes(links=(LinkWish("a", "z", "int8"),)),
            ("int8",),
            "there is no worker z: the workers are a",
        ),
    ],
)
def test_unknown_codecs_and_workers_are_refused(
    wishes: CodecWishes, codebook: tuple[str, ...], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        require_known(wishes, ["a", "b"], codebook)


def test_a_named_link_that_the_plan_does_not_use_gets_a_note() -> None:
    wishes = CodecWishes(links=(LinkWish("a", "c", "int8"), LinkWish("a", "b", "int8")))
    (note,) = unused(chain(["a", "b", "c"]), wishes)
    assert "sends nothing from a to c" in note


def test_a_link_has_at_most_one_wish() -> None:
    with pytest.raises(ValueError, match="one codec"):
        CodecWishes(links=(LinkWish("a", "b", "int8"), LinkWish("a", "b", "bf16")))
