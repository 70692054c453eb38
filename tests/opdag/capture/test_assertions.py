"""What forward asserts of its data holds no model up; whatever else depends on data does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.opdag.asserting_bodies import (
    branch_beside,
    decided,
    kept,
    number_with_words,
    over_lines,
    truth_of_a_tensor,
)
from tests.opdag.bodies import Base, line_of, pairs, refusal, require_gradients_of_eager
from torch import Tensor

from farflung.opdag.capture import capture


@pytest.mark.parametrize("body", [truth_of_a_tensor, number_with_words, over_lines])
def test_an_assertion_about_data_is_left_out_with_a_remark(body: Callable[..., Tensor]) -> None:
    module = Base(body)
    captured = capture(module, pairs())
    (remark,) = captured.lints
    assert remark.startswith("workers do not check what is asserted of data (")
    assert line_of(body, "assert") in remark
    require_gradients_of_eager(module, captured)


@pytest.mark.parametrize("body", [decided, branch_beside, kept])
def test_what_is_used_besides_is_refused(body: Callable[..., Tensor]) -> None:
    assert refusal(Base(body)).lint == "control-flow"
