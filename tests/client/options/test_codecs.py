from __future__ import annotations

import pytest

from farflung.client.options.codecs import parse_codecs
from farflung.errors import PlanError
from farflung.plans import LinkWish


def test_a_rung_for_every_link_and_others_for_some() -> None:
    found = parse_codecs(["int8/int8", "a->b=dense", "b -> a = int8/eden4"])
    assert found.every == "int8"
    assert found.wishes.links == (LinkWish("a", "b", "dense"), LinkWish("b", "a", "int8/eden4"))
    assert parse_codecs(None).every is None


def test_rungs_may_come_in_turn() -> None:
    found = parse_codecs(["int4/int4@0.85,bf16", "a->b=int8@.5,dense"])
    assert found.every == "int4@0.85,bf16"
    assert found.wishes.links == (LinkWish("a", "b", "int8@.5,dense"),)


def test_a_policy_for_every_link() -> None:
    for policy in ("auto", "auto:int8/int4-stochastic", "adatopk:100", "uniform:12.5"):
        assert parse_codecs([policy]).every == policy


def test_sums_have_a_codec_of_their_own() -> None:
    for codec in ("int8", "topk1-bf16", "bf16+zstd", "auto", "dense"):
        assert parse_codecs(None, codec).sums == codec
    assert parse_codecs(["int8"]).sums is None


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("int9", "--sum-codec 'int9': there is no codec 'int9'"),
        ("int8/int8", "--sum-codec 'int8/int8': there is no codec"),
        ("axes30", "cannot use codec axes30, because what is read of it depends on the machine"),
        ("even30-dithered", "even30-dithered, because what is read of it depends on the machine"),
        ("token-mean:int8", "because they have no tokens"),
        ("masked30-int4", "because they have no activation"),
    ],
)
def test_a_codec_that_sums_cannot_use_is_refused(codec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_codecs(None, codec)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["int9"], "there is no codec 'int9'"),
        (
            ["autoo"],
            "'autoo': did you mean auto\\? the policies are auto, auto:ROUGHEST, adatopk:R and uniform:R",
        ),
        (["adatopk30"], "did you mean adatopk"),
        (["int8/"], "there is no codec ''"),
        (["a->b=int9"], "'a->b=int9': there is no codec 'int9'"),
        (["int8", "bf16"], "twice for every link: int8 and bf16"),
        (["a->b=int8", "a->b=bf16"], "twice for a -> b"),
        (["a=int8"], "takes RUNG or A->B=RUNG"),
        (["a->a=int8"], "takes RUNG or A->B=RUNG"),
        (["->b=int8"], "takes RUNG or A->B=RUNG"),
        (["topk0-bf16"], "there is no codec 'topk0-bf16'"),
        (["adatopk:0.5"], "a ratio must be 1"),
        (["uniform"], "expected a ratio after the colon"),
        (["auto:int7"], "expected one of dense, bf16"),
        (["a->b=auto"], "auto chooses for every link"),
        (["auto", "int8"], "given twice"),
        (["auto", "a->b=int8"], "codec auto chooses for every link: do not give links codecs of their own"),
        (["int8@0.5"], "every codec pair except the last needs @SHARE"),
        (["int8,bf16"], "every codec pair except the last needs @SHARE"),
        (["int8@0.5,bf16@0.4,dense"], "shares must rise between 0 and 1, found 0.4"),
        (["int8@1.5,bf16"], "shares must rise between 0 and 1, found 1.5"),
        (["int8@0,bf16"], "shares must rise between 0 and 1, found 0"),
        (["int8@most,bf16"], "'most' is not a share of the steps, such as 0.85"),
        (["int8@0.5,int9"], "there is no codec 'int9'"),
        (["auto@0.5,int8"], "auto is a policy for a whole run"),
        (["int8@0.5,adatopk:9"], "adatopk is a policy for a whole run"),
        (["int8@0.1," * 9 + "bf16"], "8 codec phases, found 10"),
    ],
)
def test_what_says_nothing_is_one_line(given: list[str], words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        parse_codecs(given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("given", ["int8@0.5", "auto:rough", "int8@most,bf16"])
def test_what_was_given_is_said_once(given: str) -> None:
    with pytest.raises(PlanError) as raised:
        parse_codecs([given])
    assert str(raised.value).count(given) == 1
