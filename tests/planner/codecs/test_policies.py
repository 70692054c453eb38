from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.codecs.chains import FLOAT_BYTES, MASK_BYTES, chain, home_line, topology

from farflung.codec import catalogue
from farflung.errors import CodecError
from farflung.planner.codecs import policies
from farflung.planner.codecs.limits import Limits
from farflung.plans import LinkCodec, Placement
from farflung.plans.codec_pair import MOST_CODECS, CodecPair
from farflung.plans.codec_policy import CodecPolicy, policy_of, topk
from farflung.simulator import Conditions


def ratios(codecs: tuple[LinkCodec, ...]) -> dict[tuple[str, str], float]:
    return {(codec.source, codec.target): codec.ratio for codec in codecs}


def kept(codecs: tuple[LinkCodec, ...]) -> dict[tuple[str, str], float]:
    """One element of how many each link's codec of gradients keeps."""
    found = {}
    for codec in codecs:
        inner = catalogue.recipe(CodecPair.of(codec.codec).gradient).codec
        found[codec.source, codec.target] = 1 / inner.share
    return found


def test_adatopk_compresses_the_slowest_link_most() -> None:
    net = topology({(0, 1): 10, (1, 0): 40, (1, 2): 1000, (2, 1): 1000})
    found = kept(policies.adatopk(100)(chain(["a", "b", "c"]), net))
    assert found["a", "b"] == pytest.approx(300, rel=4e-3)
    assert found["b", "a"] == pytest.approx(75, rel=0.05)
    assert found["b", "c"] == pytest.approx(3, rel=0.05)
    assert kept(policies.adatopk(30)(chain(["a", "b", "c"]), net)).keys() == {("a", "b"), ("b", "a")}


def test_ratios_are_those_that_codecs_declare() -> None:
    codec = policies.uniform_topk(100)(chain(["a", "b"]), topology({}))[0]
    assert codec.codec == "topk1-bf16"
    assert codec.ratio == pytest.approx(catalogue.declared("topk1-bf16").ratio)
    assert codec.ratio > 100


def test_a_shared_access_line_slows_a_link() -> None:
    net = home_line(topology({}), 0, 1.0)
    assert kept(policies.adatopk(20)(chain(["a", "b", "c"]), net)) == {
        ("a", "b"): pytest.approx(60, rel=4e-3)
    }


def test_activations_of_frozen_layers_are_compressed_and_nothing_comes_back() -> None:
    plan = chain(["a", "b", "c"])
    edges = [
        msgspec.structs.replace(edge, differentiable=False, frozen=True) if edge.source == 0 else edge
        for edge in plan.edges
    ]
    plan = msgspec.structs.replace(plan, edges=edges)
    assert ratios(policies.uniform("int8/int4-stochastic")(plan, topology({}))) == {
        ("a", "b"): pytest.approx(catalogue.declared("int8").ratio),
        ("b", "c"): pytest.approx(catalogue.declared("int8").ratio),
        ("c", "b"): pytest.approx(catalogue.declared("int4-stochastic").ratio),
    }
    slow = topology({(0, 1): 1.0, (1, 0): 1.0})
    chosen = {(link.source, link.target) for link in policies.auto(Limits(0.05), Conditions())(plan, slow)}
    assert ("a", "b") in chosen and ("b", "a") not in chosen


def test_only_floats_are_compressed() -> None:
    found = ratios(policies.uniform_topk(30)(chain(["a", "b"], masks=True), topology({})))
    ratio = catalogue.declared("topk3.33-bf16").ratio
    assert found["a", "b"] == pytest.approx(1500 / (FLOAT_BYTES / ratio + MASK_BYTES))
    assert found["b", "a"] == pytest.approx(ratio)


def test_a_codec_pair_codes_activations_and_gradients_separately() -> None:
    codecs = policies.uniform("int8/int4-stochastic")(chain(["a", "b", "c"]), topology({}))
    assert {codec.codec for codec in codecs} == {"int8/int4-stochastic"}
    found = ratios(codecs)
    assert found["a", "b"] == pytest.approx(catalogue.declared("int8").ratio)
    assert found["b", "a"] == pytest.approx(catalogue.declared("int4-stochastic").ratio)
    with pytest.raises(CodecError, match="there is no codec 'int7'"):
        policies.uniform("int8/int7")


def test_dense_links_and_segments_of_one_worker_have_no_codecs() -> None:
    assert policies.dense(chain(["a", "b"]), topology({})) == ()
    assert policies.uniform("dense")(chain(["a", "b"]), topology({})) == ()
    assert policies.adatopk(100)(chain(["a", "a"]), topology({})) == ()


def test_each_replica_has_links_of_its_own() -> None:
    plan = chain(["a", "b"])
    placements = [Placement(0, ["a", "c"], 1, 1, 1), Placement(1, ["b", "d"], 1, 1, 1)]
    plan = msgspec.structs.replace(plan, placements=placements, shares=[2, 2])
    codecs = policies.uniform_topk(30)(plan, topology({}, 4))
    assert ratios(codecs).keys() == {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    msgspec.structs.replace(plan, codecs=list(codecs))


def test_auto_names_the_links_that_are_slow() -> None:
    net = topology({(0, 1): 20, (1, 0): 20})
    plan = chain(["a", "b", "c"], size=10**6, flops=10**11)
    found = ratios(policies.auto(Limits(0.02), Conditions())(plan, net))
    slow = [found.pop(pair) for pair in (("a", "b"), ("b", "a"))]
    assert min(slow) > 3 and max(found.values(), default=1.0) <= 2


@pytest.mark.parametrize("ratio", [0.5, 0.0, -3.0, math.nan, math.inf, 1e9])
def test_a_ratio_below_one_is_refused_in_one_line(ratio: float) -> None:
    for policy in (policies.uniform_topk, policies.adatopk):
        with pytest.raises(CodecError, match=r"^a ratio must be 1 .* found \S+$"):
            policy(ratio)


@given(selection=st.floats(1, 3e5))
def test_every_selection_has_a_codec_that_keeps_as_much(selection: float) -> None:
    rung = topk(selection)
    for name in rung:
        recipe = catalogue.recipe(name)
        share = getattr(recipe.codec, "share", 1.0)
        assert share == pytest.approx(1 / selection, rel=6e-3, abs=6e-7)


@pytest.mark.parametrize("ratio", [1.0, 7.5, 100.0, 1e5])
def test_a_job_that_asks_for_a_policy_has_every_codec_it_may_choose_in_its_codebook(ratio: float) -> None:
    book = CodecPolicy("adatopk", ratio).codebook
    assert len(book) <= MOST_CODECS
    for slower in (1.0, 3.3, 17.0, 250.0, 1e4):
        net = topology({(0, 1): 1.0, (1, 0): slower, (1, 2): 40 * slower, (2, 1): 2.5})
        for codec in policies.adatopk(ratio)(chain(["a", "b", "c"]), net):
            assert set(CodecPair.of(codec.codec)) <= set(book)
    assert set(CodecPolicy("uniform", ratio).codebook) <= {*topk(ratio)}


def test_policies_are_read_from_text() -> None:
    assert policy_of("auto") == CodecPolicy("auto")
    assert policy_of("adatopk:100") == CodecPolicy("adatopk", 100.0)
    assert policy_of("uniform:12.5") == CodecPolicy("uniform", 12.5)
    assert policy_of("int8/int4-stochastic") is None
    for text in ("adatopk", "uniform:", "uniform:many", "adatopk:0.5", "adatopk:nan", "uniform:inf"):
        with pytest.raises(CodecError, match="ratio"):
            policy_of(text)


def test_a_plan_accepts_the_roughest_codec() -> None:
    plan = chain(["a", "b"])
    rough = policies.uniform("topk0.0001-int4")(plan, topology({}, workers=2))
    updated = msgspec.msgpack.encode(msgspec.structs.replace(plan, codecs=list(rough)))
    assert msgspec.msgpack.decode(updated, type=type(plan)).codecs == list(rough)
