"""Operations by formula against counts by hand; `opdag/cost.py` states the convention."""

from __future__ import annotations

from collections import defaultdict

import pytest
from benchmarks.zoo import case
from benchmarks.zoo.batches import SEQUENCE, SYMBOLS, WIDTH
from benchmarks.zoo.side_by_side import captured

from farflung.opdag.cost import flops
from farflung.opdag.graph import Argument, BatchSize, Dimension, Node, Ref, ValueType
from farflung.opdag.opset import lookup, table

BATCH = 3
B = BatchSize(1)


def count(op: str, result: list[Dimension], arguments: dict[str, Argument | tuple[Dimension, ...]]) -> int:
    """Operations of one node; a tuple among the arguments is the shape of a tensor."""
    types: list[ValueType] = []
    named: dict[str, Argument] = {}
    for name, argument in arguments.items():
        if isinstance(argument, tuple):
            named[name] = Ref(len(types))
            types.append(ValueType("float32", list(argument)))
        else:
            named[name] = argument
    types.append(ValueType("float32", result))
    results = max(1, lookup(f"aten.{op}").results)
    outputs = [len(types) - 1, *[-1] * (results - 1)]
    return flops(Node(0, f"aten.{op}", named, outputs), types, BATCH)


def test_a_product_takes_two_operations_for_each_multiply_add_and_none_for_its_bias() -> None:
    linear = {"input": (B, 5, 7), "weight": (11, 7), "bias": (11,)}
    assert count("linear.default", [B, 5, 11], linear) == 2 * 3 * 5 * 7 * 11
    assert count("mm.default", [4, 6], {"self": (4, 5), "mat2": (5, 6)}) == 2 * 4 * 5 * 6
    assert count("addmm.default", [B, 6], {"self": (6,), "mat1": (B, 5), "mat2": (5, 6)}) == 2 * 3 * 5 * 6
    assert count("bmm.default", [B, 4, 6], {"self": (B, 4, 5), "mat2": (B, 5, 6)}) == 2 * 3 * 4 * 5 * 6
    both = {"self": (B, 4, 6), "batch1": (B, 4, 5), "batch2": (B, 5, 6)}
    assert count("baddbmm.default", [B, 4, 6], both) == 2 * 3 * 4 * 5 * 6
    assert (
        count("matmul.default", [B, 2, 4, 6], {"self": (B, 2, 4, 5), "other": (5, 6)})
        == 2 * 3 * 2 * 4 * 5 * 6
    )
    assert count("matmul.default", [B], {"self": (B, 5), "other": (5,)}) == 2 * 3 * 5


@pytest.mark.parametrize(
    ("shape", "weight", "result", "by_hand"),
    [
        ((B, 3, 8, 8), (16, 3, 3, 3), [B, 16, 8, 8], 2 * (3 * 16 * 8 * 8) * (3 * 3 * 3)),
        ((B, 4, 9, 9), (8, 4, 3, 3), [B, 8, 4, 4], 2 * (3 * 8 * 4 * 4) * (4 * 3 * 3)),  # stride 2
        ((B, 6, 8, 8), (6, 1, 3, 3), [B, 6, 8, 8], 2 * (3 * 6 * 8 * 8) * (3 * 3)),  # a group a channel
        ((B, 8, 8, 8), (4, 4, 1, 1), [B, 4, 8, 8], 2 * (3 * 4 * 8 * 8) * 4),  # two groups
        ((B, 2, 9, 9), (5, 2, 3, 3), [B, 5, 5, 5], 2 * (3 * 5 * 5 * 5) * (2 * 3 * 3)),  # dilation 2
    ],
    ids=["padded", "strided", "depthwise", "grouped", "dilated"],
)
def test_a_convolution_counts_every_place_of_its_kernel(
    shape: tuple[Dimension, ...], weight: tuple[Dimension, ...], result: list[Dimension], by_hand: int
) -> None:
    assert count("conv2d.default", result, {"input": shape, "weight": weight}) == by_hand


def test_convolutions_of_one_and_three_dimensions() -> None:
    assert (
        count("conv1d.default", [B, 8, 10], {"input": (B, 4, 12), "weight": (8, 4, 3)}) == 2 * 3 * 8 * 10 * 12
    )
    deep = {"input": (B, 2, 4, 4, 4), "weight": (3, 2, 3, 3, 3)}
    assert count("conv3d.default", [B, 3, 2, 2, 2], deep) == 2 * (3 * 3 * 8) * (2 * 27)


HEADS, WIDE = 4, 8


def attention(queries: int, keys: int, key_heads: int = HEADS, width: int = WIDE, **more: Argument) -> int:
    shapes = {
        "query": (B, HEADS, queries, WIDE),
        "key": (B, key_heads, keys, WIDE),
        "value": (B, key_heads, keys, width),
    }
    return count("scaled_dot_product_attention.default", [B, HEADS, queries, width], {**shapes, **more})


def test_attention_counts_each_pair_of_query_and_key_twice() -> None:
    assert attention(6, 6) == 3 * HEADS * 36 * 2 * (WIDE + WIDE)
    assert attention(6, 10) == 3 * HEADS * 60 * 2 * (WIDE + WIDE)
    assert attention(6, 6, width=5) == 3 * HEADS * 36 * 2 * (WIDE + 5)
    assert attention(6, 6, dropout_p=0.1) == attention(6, 6)


def test_a_causal_mask_leaves_the_pairs_that_see_each_other() -> None:
    """Query n sees the keys 0 to n, and there are no more keys than there are."""
    for queries, keys in ((6, 6), (6, 10), (10, 6), (1, 5)):
        pairs = sum(min(query + 1, keys) for query in range(queries))
        assert attention(queries, keys, is_causal=True) == 3 * HEADS * pairs * 4 * WIDE


def test_grouped_queries_share_keys_but_not_work() -> None:
    assert attention(6, 6, key_heads=2, enable_gqa=True) == attention(6, 6)


def test_elementwise_ops_count_their_results() -> None:
    assert count("add.Tensor", [B, 4, 5], {"self": (B, 4, 5), "other": (5,)}) == 3 * 4 * 5
    assert count("gelu.default", [B, 4], {"self": (B, 4)}) == 3 * 4
    assert count("mul.Tensor", [4, 5], {"self": (4, 1), "other": (1, 5)}) == 20
    assert count("native_dropout.default", [B, 4], {"input": (B, 4), "p": 0.5, "train": True}) == 3 * 4


def test_reductions_and_losses_count_the_passes_over_their_input() -> None:
    assert count("sum.dim_IntList", [B], {"self": (B, 7), "dim": [1]}) == 3 * 7
    assert count("mean.default", [], {"self": (B, 7)}) == 3 * 7
    assert count("softmax.int", [B, 7], {"self": (B, 7), "dim": -1}) == 5 * 3 * 7
    assert count("logsumexp.default", [B], {"self": (B, 7), "dim": [1]}) == 4 * 3 * 7
    assert count("cross_entropy_loss.default", [], {"self": (B, 7), "target": (B,)}) == 5 * 3 * 7
    assert count("nll_loss_nd.default", [], {"self": (B, 7), "target": (B,)}) == 3
    assert count("mse_loss.default", [], {"self": (B, 7), "target": (B, 7)}) == 3 * 3 * 7
    assert count("var.correction", [B], {"self": (B, 7), "dim": [1]}) == 4 * 3 * 7


def test_norms_count_statistics_scaling_weight_and_bias() -> None:
    plain = {"input": (B, 4, 6), "normalized_shape": [6]}
    assert count("layer_norm.default", [B, 4, 6], plain) == 6 * 3 * 4 * 6
    affine = {**plain, "weight": (6,), "bias": (6,)}
    assert count("layer_norm.default", [B, 4, 6], affine) == 8 * 3 * 4 * 6
    assert count("rms_norm.default", [B, 4, 6], {**plain, "weight": (6,)}) == 4 * 3 * 4 * 6
    grouped = {"input": (B, 4, 6), "num_groups": 2, "weight": (4,), "bias": (4,)}
    assert count("group_norm.default", [B, 4, 6], grouped) == 8 * 3 * 4 * 6


def test_pooling_counts_every_element_of_every_window() -> None:
    shape = {"self": (B, 2, 8, 8)}
    assert count("max_pool2d.default", [B, 2, 4, 4], {**shape, "kernel_size": [3, 3]}) == 3 * 2 * 16 * 9
    assert count("avg_pool2d.default", [B, 2, 4, 4], {**shape, "kernel_size": [2]}) == 3 * 2 * 16 * 4
    assert count("adaptive_avg_pool2d.default", [B, 2, 1, 1], {**shape, "output_size": [1, 1]}) == 3 * 2 * 64
    # Windows of 3, 4 and 3 of 8 elements overlap.
    assert (
        count("adaptive_avg_pool2d.default", [B, 2, 3, 1], {**shape, "output_size": [3, 1]}) == 3 * 2 * 10 * 8
    )


def test_views_and_movement_count_nothing() -> None:
    assert count("embedding.default", [B, 4, 8], {"weight": (11, 8), "indices": (B, 4)}) == 0
    assert count("reshape.default", [B, 32], {"self": (B, 4, 8), "shape": [B, 32]}) == 0
    assert count("cat.default", [B, 8], {"tensors": [Ref(0), Ref(0)], "dim": 1}) == 0
    assert count("zeros.default", [4, 4], {"size": [4, 4]}) == 0


def of_model(name: str) -> dict[str, int]:
    """Operations of a model of the tests by group."""
    graph = captured(case(name), BATCH)[1]
    found: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        found[lookup(node.op).group] += flops(node, graph.values, BATCH)
    return {group: operations for group, operations in found.items() if operations}


def test_a_gpt_by_hand() -> None:
    layers, tokens, d, half = 4, BATCH * SEQUENCE, WIDTH, WIDTH // 2 // 2
    blocks = layers * 2 * tokens * (3 * d * d + d * d + 4 * d * d + 4 * d * d)
    assert of_model("gpt") == {
        "product": blocks + 2 * tokens * d * SYMBOLS,
        "attention": layers * BATCH * 2 * (SEQUENCE * (SEQUENCE + 1) // 2) * 2 * d,
        "normalisation": (2 * layers + 1) * 8 * tokens * d,
        # Residuals, GELU, rotations of query and key; their angles, cosines and sines.
        "elementwise": layers * (2 + 4 + 6) * tokens * d + 2 * half + 3 * SEQUENCE * half,
        "reduction": 5 * tokens * SYMBOLS,
    }


@pytest.mark.slow
def test_a_resnet_by_hand() -> None:
    """A stem at 16 x 16, a pool to 8 x 8, then four stages of two blocks."""
    stem = BATCH * 4 * 16 * 16
    convolutions, elements, added = 2 * stem * 3 * 9, stem, 0
    before, side = 4, 8
    for width, stride in zip((4, 4, 8, 8, 12, 12, 16, 16), (1, 1, 2, 1, 2, 1, 2, 1), strict=True):
        side //= stride
        place = BATCH * side * side * width
        convolutions += 2 * place * 9 * before + 2 * place * 9 * width
        elements += 2 * place
        if stride != 1 or before != width:
            convolutions += 2 * place * before
            elements += place
        added += place
        before = width
    found = of_model("resnet")
    assert found["convolution"] == convolutions
    assert found["normalisation"] == 8 * elements
    assert found["pooling"] == BATCH * 4 * 8 * 8 * 9 + BATCH * 16 * side * side
    assert found["product"] == 2 * BATCH * 16 * 10 and found["reduction"] == 5 * BATCH * 10
    counters = 17 + 3  # BatchNorm counts its batches
    norms_before_relu = stem + added  # the first of each block
    assert found["elementwise"] == norms_before_relu + 2 * added + counters


def test_every_op_of_the_table_has_a_formula_or_costs_nothing() -> None:
    free = {"view", "movement", "creation"}
    priced = {
        "elementwise",
        "reduction",
        "normalisation",
        "pooling",
        "product",
        "convolution",
        "attention",
        "resampling",
    }
    assert {op.group for op in table().values()} <= free | priced
