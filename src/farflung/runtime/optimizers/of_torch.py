"""What to declare where a user gives one of torch's own optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Muon, Optimizer

_ALIKE: Mapping[str, type[Optimizer]] = {
    "AdamW": AdamW, "Adam": AdamW, "SGD": SGD, "Adafactor": Adafactor, "Muon": Muon,
}  # fmt: skip
_OTHERS = "others=farflung.AdamW(lr=...)"
"""Of embeddings, norms and biases: with torch, a second optimizer has them."""
_ANY = "farflung.AdamW(lr=...), SGD, Lion, Adafactor or Muon"


def declared_instead(optimizer: object) -> str | None:
    """The declaration with the numbers of one of torch's optimizers; None if it is none of those.

    Where there is no equal one, it is the list of all kinds. That is so for weight decay of Adam, which is
    not AdamW's, and for options such as `amsgrad` that no declared optimizer has.
    """
    numbers, groups = getattr(optimizer, "defaults", None), getattr(optimizer, "param_groups", ())
    if not isinstance(numbers, dict) or not groups:
        return None
    name = type(optimizer).__name__
    kind = _ALIKE.get(name) if type(optimizer).__module__.startswith("torch.") else None
    changes = any(numbers.get(option) for option in ("amsgrad", "maximize", "differentiable"))
    if kind is None or changes or (name == "Adam" and numbers.get("weight_decay")):
        return _ANY
    given = [f"{field}={_shown(value)}" for field, value in _changed(kind, numbers)]
    if kind is Muon:
        given.append(_OTHERS)
    if len(groups) > 1:
        given.append("groups=(farflung.Group(...), ...)")
    return f"farflung.{kind.__name__}({', '.join(given)})"


def _changed(kind: type[Optimizer], numbers: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The rate, and what differs from the declared optimizer's own defaults; torch says None for some."""
    for field in msgspec.structs.fields(kind):
        found = numbers.get(field.name)
        if field.name == "lr" or (found is not None and found != field.default):
            yield field.name, found


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, bool | str) or value is None:
        return repr(value)
    return f"{float(value):g}"  # type: ignore[arg-type]  # torch also takes a tensor for the rate
