"""The codecs' benchmark on small made-up tensors: every row is there, and what it says is what was done."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.captured import Captured
from benchmarks.codec import CODECS, MASKED, MILLION, Row, Yardstick, _goals, _learned, _measured


def made_up() -> Captured:
    """A model whose rows are mostly a function of their key."""
    random = np.random.default_rng(0)
    keys = random.integers(0, 256, (24, 32))
    meanings = random.standard_normal((256, 64)).astype(np.float32)
    noise = random.standard_normal((2, 24, 32, 64)).astype(np.float32)
    return Captured("made up", meanings[keys] + noise[0] / 10, noise[1], keys)


def test_every_codec_is_measured_on_both_tensors_beside_the_yardsticks() -> None:
    measured = list(_measured(made_up(), 24 * 32 * 64))
    rows = [row for row in measured if isinstance(row, Row)]
    yardsticks = [row for row in measured if isinstance(row, Yardstick)]
    names = {(row.tensor, row.codec) for row in rows}
    assert names == {(t, c) for t in ("activation", "gradient") for c in CODECS} | {("gradient", MASKED)}
    by_name = {(row.tensor, row.codec): row for row in rows}
    int8 = by_name["gradient", "int8"]
    assert int8.ratio == pytest.approx(3.97, abs=0.01)
    assert int8.relative_error == pytest.approx(0.0070, abs=0.0005)
    assert int8.cosine == pytest.approx(1, abs=1e-4)
    assert all(row.encode_gbps > 0 and row.decode_gbps > 0 for row in rows)
    assert by_name["gradient", "topk 10 %"].index_bits == pytest.approx(1.01, abs=0.03)
    assert [y.elements for y in yardsticks] == [24 * 32 * 64] * 2
    goals = _goals(rows, yardsticks, 24 * 32 * 64)
    assert [goal.wanted for goal in goals] == [3, 1, 10, 1.05]
    assert all(
        goal.met == (goal.found <= 1.05 if goal.wanted == 1.05 else goal.found >= goal.wanted)
        for goal in goals
    )


@pytest.mark.full
@pytest.mark.slow
def test_a_reference_is_measured_after_it_was_learned() -> None:
    model = made_up()
    whole = np.concatenate([np.tile(model.activation, (MILLION // model.activation.size, 1, 1))] * 3)
    keys = np.concatenate([np.tile(model.keys, (MILLION // model.activation.size, 1))] * 3)
    rows = {row.codec: row for row in _learned(Captured("made up", whole, whole, keys))}
    assert rows["token mean, hadamard 4, least error"].relative_error < 0.03
    assert rows["axes 10 %"].relative_error < 0.04
    assert rows["axes 100 %, dithered"].relative_error == pytest.approx(0.29, abs=0.01)
