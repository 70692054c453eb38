"""Declarations of optimizers and learning rates, which are sent to workers; each backend builds its own.

What an optimizer keeps of a parameter is a set of *slots*, named as in the state dict of `torch.optim`:

- AdamW: `step`, the number of updates that the parameter has had (int64), `exp_avg` and `exp_avg_sq`;
- SGD with momentum: `momentum_buffer`; without momentum nothing.

All but `step` have the parameter's shape and element type. As bytes, slots are little endian and row-major. A
parameter that was never updated has no slots, which is not the same as slots of zeros: SGD's first buffer is
the gradient itself, without dampening.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from farflung.errors import GraphError

STEP = "step"
STEP_BYTES = 8


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The declared rate at every step, after a linear rise over `warmup_steps`."""

    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _require_whole("warmup_steps", self.warmup_steps, 0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        return _warmup_ratio(step, self.warmup_steps)


class WarmupCosine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A linear rise over `warmup_steps`, then half a cosine down to `minimum_ratio` at `total_steps`.

    The rate stays at its minimum from there on; `total_steps` does not follow the job's `steps`.
    """

    warmup_steps: int
    total_steps: int
    minimum_ratio: float = 0.1

    def __post_init__(self) -> None:
        _require_whole("warmup_steps", self.warmup_steps, 0)
        _require_whole("total_steps", self.total_steps, self.warmup_steps + 1)
        _require_number("minimum_ratio", self.minimum_ratio, 0.0, 1.0)

    def ratio(self, step: int) -> float:
        """Factor of the declared rate at `step`, counted from 0."""
        if step < self.warmup_steps:
            return _warmup_ratio(step, self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.minimum_ratio + (1.0 - self.minimum_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))


Schedule = Constant | WarmupCosine


class AdamW(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Hyperparameters of `torch.optim.AdamW`; weight decay applies to every parameter, as there.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    schedule: Schedule = msgspec.field(default_factory=Constant)

    def __post_init__(self) -> None:
        _require_number("lr", self.lr, 0.0)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise ValueError(f"betas must be a tuple of two numbers, found {self.betas!r}")
        for beta in self.betas:
            _require_number("betas", beta, 0.0, 1.0, below=True)
        _require_number("eps", self.eps, 0.0)
        _require_number("weight_decay", self.weight_decay, 0.0)
        _require_schedule(self.schedule)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of a parameter that has been updated."""
        return (STEP, "exp_avg", "exp_avg_sq")

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number."""
        return 2

    @property
    def rule(self) -> str:
        """The update rule, which determines an update's duration."""
        return "AdamW"


class SGD(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Hyperparameters of `torch.optim.SGD`; weight decay applies to every parameter, as there.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = msgspec.field(default_factory=Constant)

    def __post_init__(self) -> None:
        _require_number("lr", self.lr, 0.0)
        _require_number("momentum", self.momentum, 0.0, 1.0, below=True)
        _require_number("dampening", self.dampening, 0.0, 1.0)
        _require_number("weight_decay", self.weight_decay, 0.0)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        _require_schedule(self.schedule)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of a parameter that has been updated."""
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number."""
        return len(self.slots)

    @property
    def rule(self) -> str:
        """The update rule, which determines an update's duration."""
        return f"SGD{' with momentum' * bool(self.momentum)}{' decaying' * bool(self.weight_decay)}"


Optimizer = AdamW | SGD


def learning_rate(optimizer: Optimizer, step: int) -> float:
    """The learning rate of step `step`, counted from 0."""
    return optimizer.lr * optimizer.schedule.ratio(step)


Slots = Mapping[str, memoryview]
"""The slots of one parameter as bytes; none if it was never updated."""


def slot_bytes(optimizer: Optimizer, parameter_bytes: int) -> dict[str, int]:
    """Bytes of each slot of an updated parameter of `parameter_bytes`."""
    return {slot: STEP_BYTES if slot == STEP else parameter_bytes for slot in optimizer.slots}


def step_slot(count: int) -> memoryview:
    """The slot `step` of a parameter with `count` updates."""
    return memoryview(bytearray(count.to_bytes(STEP_BYTES, "little", signed=True)))


def step_count(slots: Slots) -> int:
    """The number of updates that the slot `step` states."""
    return int.from_bytes(slots[STEP], "little", signed=True)


def require_slots(optimizer: Optimizer, name: str, parameter_bytes: int, slots: Slots) -> None:
    """Check the slots of the updated parameter `name` of `parameter_bytes`.

    Raises
    ------
    GraphError
        A slot is missing, unknown or of another size, or the count of updates is below 1.
    """
    expected = slot_bytes(optimizer, parameter_bytes)
    found = {slot: buffer.nbytes for slot, buffer in slots.items()}
    if found != expected:
        raise GraphError(
            f"the optimizer state of {name[:60]!r} does not fit {optimizer.rule}: expected"
            f" {_listed(expected)}, found {_listed(found)}"
        )
    if STEP in slots and (count := step_count(slots)) < 1:
        raise GraphError(f"the optimizer state of {name[:60]!r} counts {count} updates, expected at least 1")


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{slot[:60]} of {size} bytes" for slot, size in sorted(sizes.items())) or "nothing"


def _warmup_ratio(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / (warmup_steps + 1))


def _require_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
        raise ValueError(f"{name} must be a whole number from {least} to 10**9, found {value!r}")


def _require_number(
    name: str, value: float, least: float, most: float = math.inf, *, below: bool = False
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most or (below and value == most):
        limit = "" if math.isinf(most) else f" and {'below' if below else 'at most'} {most:g}"
        raise ValueError(f"{name} must be a finite number, at least {least:g}{limit}, found {value!r}")


def _require_schedule(schedule: object) -> None:
    if not isinstance(schedule, Constant | WarmupCosine):
        raise ValueError(f"schedule must be farflung.Constant or farflung.WarmupCosine, found {schedule!r}")
