"""The picture of a model's depth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pictures.drawn import assert_legible, svg_text

from farflung.pictures.depth import Depth, draw_depth, outer_module

depths = st.integers(1, 60).flatmap(
    lambda n: st.builds(
        Depth,
        crossing=st.lists(st.floats(0, 1e12), min_size=n + 1, max_size=n + 1),
        legal=st.lists(st.booleans(), min_size=n + 1, max_size=n + 1),
        parts=st.lists(st.sampled_from(["", "h.0.attn", "h.1", "<b>&", "$a.b.3.x"]), min_size=n, max_size=n),
        cuts=st.lists(st.integers(1, n), max_size=3),
    )
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(depths)
def test_any_depth_can_be_drawn(depth: Depth) -> None:
    figure = draw_depth("model <1> $", depth)
    (axes,) = figure.axes
    assert "model <1> $" in svg_text(figure)
    assert len([line for line in axes.lines if line.get_label() == "cut"]) == len(depth.cuts)
    low, high = axes.get_ylim()
    for curve in axes.patches:
        if hasattr(curve, "get_data"):
            values, edges, _ = curve.get_data()
            assert len(values) == len(depth.parts) - 1
            assert all(low <= value <= high for value in values)
            assert edges[0] == 0.5 and edges[-1] == len(depth.parts) - 0.5
    assert_legible(figure)


def test_cuts_and_modules_are_named() -> None:
    parts = [f"transformer.h.{n // 10}.attn" for n in range(40)]
    words = svg_text(draw_depth("gpt", Depth([0.0, *[786_000.0] * 39, 0.0], [True] * 41, parts, [20])))
    assert "786 kB" in words and "transformer.h.2" in words and "grey" not in " ".join(words)
    assert any(text.startswith("40 nodes, 39 places to cut") for text in words)


def test_modules_down_to_the_first_number() -> None:
    assert outer_module("transformer.h.3.attn") == "transformer.h.3"
    assert outer_module("encoder.embed.weight") == "encoder.embed"
