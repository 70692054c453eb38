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
    ],
)
def test_what_says_nothing_is_one_line(given: list[str], words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        the_codecs(given)
    assert "\n" not in str(raised.value)
