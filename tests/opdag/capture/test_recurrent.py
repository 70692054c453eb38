"""Recurrent layers as the ops they are made of: they compute what torch does, dropout and gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from farflung.errors import CaptureError
from farflung.opdag.capture import capture
from farflung.opdag.capture.recurrent import unroll_recurrent_layers

SAMPLES, PLACES, WIDTH, HIDDEN = 3, 5, 4, 6
LAYERS: list[Callable[..., nn.RNNBase]] = [
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 3, "dropout": 0.4},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
    {"bias": False, "bidirectional": True},
]


def results(layer: nn.Module, x: Tensor, state: Any) -> list[Tensor]:
    """What the layer makes of x, and the gradients of all that went in."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    output, final = layer(x, state)
    finals = list(final) if isinstance(final, tuple) else [final]
    weigh = torch.linspace(0.5, 1.5, output.numel()).reshape(output.shape)
    total = (output * weigh).sum() + sum(part.square().sum() for part in finals)
    gradients = torch.autograd.grad(total, [x, *layer.parameters()])
    return [output, *finals, *gradients]


def require_same(layer: nn.Module, x: Tensor, state: Any = None) -> None:
    with unroll_recurrent_layers():
        unrolled = results(layer, x, state)
    for ours, theirs in zip(unrolled, results(layer, x, state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("kind", LAYERS, ids=["lstm", "gru", "rnn-tanh", "rnn-relu"])
def test_layers_compute_what_torchs_kernels_do(kind: Callable[..., nn.RNNBase], options: Any) -> None:
    torch.manual_seed(1)
    layer = kind(WIDTH, HIDDEN, **options)
    shape = (SAMPLES, PLACES) if options.get("batch_first") else (PLACES, SAMPLES)
    require_same(layer, torch.randn(*shape, WIDTH))


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_with_projection_and_a_given_state(bias: bool) -> None:
    torch.manual_seed(1)
    layer = nn.LSTM(WIDTH, HIDDEN, 2, proj_size=2, bias=bias)
    state = (torch.randn(2, SAMPLES, 2), torch.randn(2, SAMPLES, HIDDEN))
    require_same(layer, torch.randn(PLACES, SAMPLES, WIDTH), state)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.RNNCellBase]) -> None:
    cell, x = kind(WIDTH, HIDDEN), torch.randn(SAMPLES, WIDTH)
    with unroll_recurrent_layers():
        ours = cell(x)
    torch.testing.assert_close(ours, cell(x), rtol=1e-5, atol=1e-6)


def test_torch_is_as_it_was_afterwards() -> None:
    before = torch._VF.lstm
    with pytest.raises(ValueError, match="meanwhile"), unroll_recurrent_layers():
        assert torch._VF.lstm is not before
        raise ValueError("meanwhile")
    assert torch._VF.lstm is before


def test_packed_sequences_are_refused_with_the_line() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(WIDTH, HIDDEN, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.tensor([PLACES, 2])
            packed = pack_padded_sequence(x, lengths, batch_first=True)
            return self.layers(packed)[0].data.mean()

    with pytest.raises(CaptureError, match="keep them padded and mask the loss") as raised:
        capture(Packed(), {"x": torch.randn(2, PLACES, WIDTH)})
    assert "test_recurrent.py" in str(raised.value)
