"""Unroll recurrent layers: LSTM, GRU and RNN layers and cells become ordinary ops, one set per position.

So they run on every backend. Export's own method is not used: it silently loses the dropout between layers
(`_rnn_helper` of torch 2.13), and whether it unrolls a layer depends on the device.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from farflung.errors import CaptureError
from farflung.opdag.capture.failures import user_line

State = tuple[Tensor, ...]
"""The state of one layer: its output so far, and an LSTM's cell; each [samples, width]."""
Cell = Callable[[Tensor, State, Tensor, Tensor | None, Tensor | None], State]
"""(gates from the input, state, weight of the state, its bias, projection) -> next state."""


def _lstm(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, down: Tensor | None) -> State:
    into, forget, cell, out = (gates + F.linear(state[0], weight, bias)).chunk(4, dim=-1)
    next_cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(into) * torch.tanh(cell)
    shown = torch.sigmoid(out) * torch.tanh(next_cell)
    return (shown if down is None else F.linear(shown, down)), next_cell


def _gru(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, down: Tensor | None) -> State:
    reset, update, fresh = gates.chunk(3, dim=-1)
    reset_state, update_state, fresh_state = F.linear(state[0], weight, bias).chunk(3, dim=-1)
    made = torch.tanh(fresh + torch.sigmoid(reset + reset_state) * fresh_state)
    return (made + torch.sigmoid(update + update_state) * (state[0] - made),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(gates: Tensor, state: State, weight: Tensor, bias: Tensor | None, down: Tensor | None) -> State:
        return (activation(gates + F.linear(state[0], weight, bias)),)

    return cell


_CELLS: dict[str, Cell] = {
    "lstm": _lstm,
    "gru": _gru,
    "rnn_tanh": _plain(torch.tanh),
    "rnn_relu": _plain(torch.relu),
}


@contextmanager
def unroll_recurrent_layers() -> Iterator[None]:
    """In this context, torch's recurrent layers and cells run as plain ops; packing is refused."""
    functions: dict[str, Callable[..., Any]] = {name: _layers(name, cell) for name, cell in _CELLS.items()}
    functions |= {f"{name}_cell": _one_step(name, cell) for name, cell in _CELLS.items()}
    functions["_pack_padded_sequence"] = _refuse_packing
    for name, function in functions.items():
        setattr(torch._VF, name, function)
    try:
        yield
    finally:
        for name in functions:
            delattr(torch._VF, name)  # they hide the functions of torch._C


def _refuse_packing(*_: object) -> NoReturn:
    line = user_line(traceback.extract_stack()) or "unknown place"
    raise CaptureError(
        f"sequences are packed, so that sizes depend on data ({line}): keep them padded and mask the loss"
    )


def _layers(name: str, cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    def run(
        x: Tensor,
        initial: Any,
        weights: list[Tensor],
        has_biases: bool,
        count: int,
        dropout: float,
        train: bool,
        both_directions: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        directions = 2 if both_directions else 1
        each = len(weights) // (count * directions)
        initials = initial if name == "lstm" else (initial,)
        x = x.transpose(0, 1) if batch_first else x
        finals: list[State] = []
        for layer in range(count):
            if layer and train and dropout:
                x = F.dropout(x, dropout)
            outputs = []
            for direction in range(directions):
                at = layer * directions + direction
                state = tuple(part[at] for part in initials)
                own = weights[at * each : (at + 1) * each]
                shown, state = _over_time(cell, x, state, own, has_biases, backwards=direction == 1)
                outputs.append(shown)
                finals.append(state)
            x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
        x = x.transpose(0, 1) if batch_first else x
        return x, *(torch.stack(part) for part in zip(*finals, strict=True))

    return run


def _over_time(
    cell: Cell, x: Tensor, state: State, weights: Sequence[Tensor], has_biases: bool, backwards: bool
) -> tuple[Tensor, State]:
    """Run one layer in one direction over x, [positions, samples, width]: all outputs, and the last state."""
    of_input, of_state, *rest = weights
    bias, state_bias = rest[:2] if has_biases else (None, None)
    down = rest[-1] if len(rest) % 2 else None
    places = list(F.linear(x, of_input, bias).unbind(0))
    outputs: list[Tensor] = []
    for gates in reversed(places) if backwards else places:
        state = cell(gates, state, of_state, state_bias, down)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _one_step(name: str, cell: Cell) -> Callable[..., Any]:
    def run(
        x: Tensor,
        state: Any,
        of_input: Tensor,
        of_state: Tensor,
        bias: Tensor | None = None,
        state_bias: Tensor | None = None,
    ) -> Any:
        given = state if name == "lstm" else (state,)
        made = cell(F.linear(x, of_input, bias), given, of_state, state_bias, None)
        return made if name == "lstm" else made[0]

    return run
