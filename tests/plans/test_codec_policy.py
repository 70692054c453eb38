from __future__ import annotations

import msgspec
import pytest

from farflung.errors import CodecError, PlanError
from farflung.plans import CodecWishes, LinkWish
from farflung.plans.codec_pair import codebook_of
from farflung.plans.codec_policy import LADDER, CodecPolicy, policy_of, topk


def test_auto_accepts_a_roughest_codec_pair() -> None:
    assert policy_of("auto") == CodecPolicy("auto")
    assert policy_of("auto:int8/int4-stochastic") == CodecPolicy("auto", roughest="int8/int4-stochastic")
    assert CodecPolicy("auto", roughest="int8").codebook == ("bf16", "int8")
    assert CodecPolicy("auto").codebook == codebook_of(LADDER)
    with pytest.raises(CodecError, match="expected one of dense, bf16"):
        policy_of("auto:int7")


@pytest.mark.parametrize("text", ["adatopk", "uniform:", "uniform:many", "adatopk:0.5", "adatopk:nan"])
def test_an_invalid_ratio_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(CodecError, match="ratio") as error:
        policy_of(text)
    assert "\n" not in str(error.value)


def test_topk_that_keeps_every_element_is_dense() -> None:
    assert topk(1.0).name == "dense"
    assert topk(100).name == "topk1-bf16"


def test_wishes_name_a_policy_or_codec_pairs_but_not_both() -> None:
    wishes = CodecWishes("auto", max_loss_gap=0.005)
    assert not wishes.is_fixed and wishes.policy == CodecPolicy("auto")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wishes), type=CodecWishes) == wishes
    assert CodecWishes("int8").is_fixed and CodecWishes("int8").policy is None
    assert CodecWishes("int8").codebook == ("int8",)
    link = LinkWish("a", "b", "int8")
    with pytest.raises(ValueError, match="chooses for every link"):
        CodecWishes("auto", (link,))
    with pytest.raises(PlanError, match="chooses for every link"):
        CodecWishes(links=(link,)).otherwise("adatopk:9")
    assert CodecWishes().otherwise("auto", 0.3) == CodecWishes("auto", max_loss_gap=0.3)
    assert CodecWishes("int8").otherwise("auto") == CodecWishes("int8")
