"""The evaluation graph: arguments that nodes of the training graph take when the model is only looked at.

Dropout becomes the identity, batch norms use their running statistics, attention drops nothing.
"""

from __future__ import annotations

from farflung.opdag.graph import Argument

EVALUATION: dict[str, dict[str, Argument]] = {
    "aten.native_dropout.default": {"train": False},
    "aten._native_batch_norm_legit_functional.default": {"training": False},
    "aten.scaled_dot_product_attention.default": {"dropout_p": 0.0},
}
