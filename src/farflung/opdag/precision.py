"""In what a model computes."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""`bfloat16` is what `torch.autocast` makes of a float32 model: its casts are nodes of the graph, parameters,
optimizer and loss stay float32."""
