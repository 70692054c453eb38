from __future__ import annotations

import pytest

from farflung.cli.codec_options import the_codecs
from farflung.errors import PlanError
from farflung.plan import LinkWish


def test_a_rung_for_every_link_and_others_for_some() -> None:
    found = the_codecs(["int8/int8", "a->b=dense", "b -> a = int8/eden4"])
    assert found.every == "int8"
    assert found.wishes.links == (LinkWish("a", "b", "dense"), LinkWish("b", "a", "int8/eden4"))
    assert the_codecs(None).every is None


def test_a_policy_for_every_link() -> None:
    for policy in ("auto", "auto:int8/int4-stochastic", "adatopk:100", "uniform:12.5"):
        assert the_codecs([policy]).every == policy


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["int9"], "there is no codec 'int9'"),
        (["int8/"], "there is no codec ''"),
        (["a->b=int9"], "'a->b=int9': there is no codec 'int9'"),
        (["int8", "bf16"], "twice for every link: int8 and bf16"),
        (["a->b=int8", "a->b=bf16"], "twice for a -> b"),
        (["a=int8"], "takes RUNG or A->B=RUNG"),
        (["a->a=int8"], "takes RUNG or A->B=RUNG"),
        (["->b=int8"], "takes RUNG or A->B=RUNG"),
        (["topk0-bf16"], "there is no codec 'topk0-bf16'"),
        (["adatopk:0.5"], "a ratio must be 1"),
        (["uniform"], "expected a ratio behind the colon"),
        (["auto:int7"], "expected one of dense, bf16"),
        (["a->b=auto"], "auto chooses for every link"),
        (["auto", "int8"], "given twice"),
        (["auto", "a->b=int8"], "codec auto chooses for every link: give none a codec beside it"),
    ],
)
def test_what_says_nothing_is_one_line(given: list[str], words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        the_codecs(given)
    assert "\n" not in str(raised.value)
