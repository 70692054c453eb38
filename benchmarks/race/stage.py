"""The model cut by hand into stages of equal depth, as a user of `torch.distributed.pipelining` would."""

from __future__ import annotations

from benchmarks.race.counting.boundary import Kind, arrives, leaves
from examples.gpt import GPT, rotation
from torch import Tensor, nn


class Stage(nn.Module):
    """Some consecutive blocks; the first stage embeds, the last one normalises and scores.

    With a `rounding` what leaves for the next stage, and its gradient on the way back, has that element type.
    """

    def __init__(self, model: GPT, number: int, stages: int, rounding: Kind = "dense") -> None:
        super().__init__()
        self.config = model.config
        self.rounding: Kind = rounding
        layers = model.config.layers
        first, last = number * layers // stages, (number + 1) * layers // stages
        self.symbol = model.symbol if number == 0 else None
        self.dropout = model.dropout if number == 0 else None
        self.blocks = nn.ModuleList(model.blocks[first:last])
        self.norm = model.norm if number == stages - 1 else None
        self.head = model.head if number == stages - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, sequence) or what the stage before sends in; what the next reads or scores out."""
        cosine, sine = rotation(x.shape[1], self.config.width // self.config.heads, x.device)
        if self.symbol is not None and self.dropout is not None:
            x = self.dropout(self.symbol(x))
        else:
            x = arrives(x, self.rounding)
        for block in self.blocks:
            x = block(x, cosine, sine)
        if self.norm is not None and self.head is not None:
            return self.head(self.norm(x))
        return leaves(x, self.rounding)
