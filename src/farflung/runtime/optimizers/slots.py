"""What an optimizer keeps of a parameter: a set of *slots*, named as in the state dict of `torch.optim`.

- AdamW: `step`, the number of updates that the parameter has had (int64), `exp_avg` and `exp_avg_sq`;
- SGD with momentum: `momentum_buffer`; without momentum nothing;
- Lion: `exp_avg`;
- Adafactor: `step`, and `row_var` and `col_var` of a parameter with two or more dimensions, whose last and
  last but one dimension are 1, or `variance` of another;
- Muon: `momentum_buffer` of a matrix that it updates, else the slots of its `others`;
- each of them with `ema`: `ema`, the moving average of the parameter after each of its updates;
- each of them with `diloco`: `step`, `anchor`, the parameter as the last merge left it, and
  `outer_momentum`.

All others have the parameter's shape, and all but `step` its element type. As bytes, slots are little endian
and row-major. A parameter that was never updated has no slots, which is not the same as slots of zeros: SGD's
first buffer is the gradient itself, without dampening. Only with `diloco` it has them from the first step on,
also where another pipeline took that step, with a count of 0 and zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from farflung.errors import GraphError
from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Muon, Optimizer, recipe_of

STEP = "step"
EMA = "ema"
ANCHOR, OUTER_MOMENTUM = "anchor", "outer_momentum"
STEP_BYTES = 8
Shape = tuple[int, ...]

Slots = Mapping[str, memoryview]
"""The slots of one parameter as bytes; none if it was never updated."""


def slot_shapes(optimizer: Optimizer, name: str, shape: Sequence[int]) -> dict[str, Shape]:
    """The shape of each slot of the parameter `name` of `shape`, once it has been updated."""
    return kept_of(recipe_of(optimizer, name, shape).declared, shape)


def kept_of(rule: Optimizer, shape: Sequence[int]) -> dict[str, Shape]:
    """The shape of each slot of a parameter of `shape` that `rule` itself updates, with those beside it."""
    found = slots_of(rule, shape) | ({} if rule.ema is None else {EMA: tuple(shape)})
    if rule.diloco is None:
        return found
    return found | {STEP: (), ANCHOR: tuple(shape), OUTER_MOMENTUM: tuple(shape)}


def slots_of(rule: Optimizer, shape: Sequence[int]) -> dict[str, Shape]:
    """The shape of each slot that the update of a parameter of `shape` by `rule` itself reads."""
    whole = tuple(shape)
    if isinstance(rule, AdamW):
        return {STEP: (), "exp_avg": whole, "exp_avg_sq": whole}
    if isinstance(rule, SGD):
        return {"momentum_buffer": whole} if rule.momentum else {}
    if isinstance(rule, Muon):
        return {"momentum_buffer": whole}
    if not isinstance(rule, Adafactor):
        return {"exp_avg": whole}
    if len(whole) < 2:
        return {STEP: (), "variance": whole}
    return {STEP: (), "row_var": (*whole[:-1], 1), "col_var": (*whole[:-2], 1, whole[-1])}


def slot_bytes(optimizer: Optimizer, name: str, shape: Sequence[int], parameter_bytes: int) -> dict[str, int]:
    """Bytes of each slot of an updated parameter that takes `parameter_bytes`."""
    each = parameter_bytes // max(1, prod(shape))
    shapes = slot_shapes(optimizer, name, shape)
    return {slot: STEP_BYTES if slot == STEP else each * prod(one) for slot, one in shapes.items()}


def step_slot(count: int) -> memoryview:
    """The slot `step` of a parameter with `count` updates."""
    return memoryview(bytearray(count.to_bytes(STEP_BYTES, "little", signed=True)))


def step_count(slots: Slots) -> int:
    """The number of updates that the slot `step` states."""
    return int.from_bytes(slots[STEP], "little", signed=True)


def require_slots(
    optimizer: Optimizer, name: str, shape: Sequence[int], parameter_bytes: int, slots: Slots
) -> None:
    """Check the slots of the updated parameter `name` of `shape` and `parameter_bytes`.

    Raises
    ------
    GraphError
        A slot is missing, unknown or of another size, or the count of updates is below 1, or 0 with `diloco`.
    """
    expected = slot_bytes(optimizer, name, shape, parameter_bytes)
    found = {slot: buffer.nbytes for slot, buffer in slots.items()}
    if found != expected:
        raise GraphError(
            f"the optimizer state of {name[:60]!r} does not fit {update_rule_of(optimizer, name, shape)}:"
            f" expected {_listed(expected)}, found {_listed(found)}"
        )
    least = 1 if optimizer.diloco is None else 0
    if STEP in slots and (count := step_count(slots)) < least:
        raise GraphError(
            f"the optimizer state of {name[:60]!r} counts {count} updates, expected at least {least}"
        )


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{slot[:60]} of {size} bytes" for slot, size in sorted(sizes.items())) or "nothing"


def update_rule_of(optimizer: Optimizer, name: str, shape: Sequence[int]) -> str:
    """What an update's duration depends on beside element type and number: the rule, for some the shape."""
    recipe = recipe_of(optimizer, name, shape)
    rule = recipe.declared
    averaged = "" if rule.ema is None else " averaged"
    if isinstance(rule, SGD):
        decaying = " decaying" * bool(recipe.weight_decay)
        return f"SGD{' with momentum' * bool(rule.momentum)}{decaying}{averaged}"
    if isinstance(rule, Adafactor | Muon) and len(shape) > 1:
        return f"{type(rule).__name__} {'x'.join(map(str, shape))}{averaged}"
    return f"{type(rule).__name__}{averaged}"
