"""What to declare where a user gives one of torch's own optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from farflung.runtime.optimizers.declared import SGD, Adafactor, AdamW, Muon, Optimizer

_ALIKE: Mapping[str, type[Optimizer]] = {
    "AdamW": AdamW, "Adam": AdamW, "RMSprop": AdamW, "SGD": SGD, "Adafactor": Adafactor, "Muon": Muon,
}  # fmt: skip
_OTHERS = "others=farflung.AdamW(lr=...)"
"""Of embeddings, norms and biases: with torch, a second optimizer has them."""
_ANY = "farflung.AdamW(lr=...), SGD, Lion, Adafactor or Muon"
_RMSPROP = ", which is RMSprop but for Adam's correction of the first steps"
_UNKNOWN = "groups=(farflung.Group(...), ...)"
_MOST_SHOWN = 12
_OWN_OF_GROUPS = ("lr", "weight_decay")


def declared_instead(optimizer: object, names: Mapping[int, str] | None = None) -> str | None:
    """The declaration with the numbers of one of torch's optimizers; None if it is none of those.

    Where there is no equal one, it is the list of all kinds. That is so for weight decay of Adam and RMSprop,
    which is not AdamW's, and for options such as `amsgrad` that no declared optimizer has.

    Parameters
    ----------
    names
        Those of the model's trained parameters by `id`: with them, each parameter group is spelled out.
    """
    groups = getattr(optimizer, "param_groups", ())
    if not isinstance(getattr(optimizer, "defaults", None), dict) or not groups:
        return None
    name = type(optimizer).__name__
    kind = _ALIKE.get(name) if type(optimizer).__module__.startswith("torch.") else None
    numbers = [_numbers(name, group) for group in groups]
    main = max(range(len(groups)), key=lambda at: sum(one.numel() for one in groups[at]["params"]))
    if kind is None or any(one is None or not _fit(one, numbers[main]) for one in numbers):
        return _ANY
    fields = [dict(_fields(kind, one)) for one in numbers if one is not None]
    given = [f"{field}={_shown(value)}" for field, value in _changed(kind, fields[main])]
    if kind is Muon:
        given.append(_OTHERS)
    given += _grouped([group["params"] for group in groups], fields, main, names or {}, kind is not Muon)
    return f"farflung.{kind.__name__}({', '.join(given)}){_RMSPROP if name == 'RMSprop' else ''}"


def _numbers(name: str, group: Mapping[str, Any]) -> dict[str, Any] | None:
    """The numbers of a group in the terms of the declared optimizer; None if that has no such ones."""
    if any(group.get(option) for option in ("amsgrad", "maximize", "differentiable", "centered")):
        return None
    numbers = {option: value for option, value in group.items() if option != "params"}
    numbers["lr"] = float(group.get("initial_lr", group["lr"]))  # a schedule of torch has changed `lr`
    if name in ("Adam", "RMSprop") and numbers.get("weight_decay"):
        return None
    if name == "RMSprop":
        betas = (0.0, numbers["alpha"])
        return None if numbers["momentum"] else {**numbers, "betas": betas, "weight_decay": 0.0}
    return numbers


def _fields(kind: type[Optimizer], numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The numbers that the declared optimizer has, too; torch says None for some."""
    for field in msgspec.structs.fields(kind):
        if numbers.get(field.name) is not None:
            yield field.name, numbers[field.name]


def _fit(one: Mapping[str, Any], main: Mapping[str, Any] | None) -> bool:
    """Whether a group differs from the main one only in what `farflung.Group` can say."""
    own = (*_OWN_OF_GROUPS, "initial_lr")
    return main is not None and all(one.get(name) == main[name] for name in main.keys() - own)


def _changed(kind: type[Optimizer], numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The rate, and what differs from the declared optimizer's own defaults."""
    for field in msgspec.structs.fields(kind):
        if field.name == "lr" or (field.name in numbers and numbers[field.name] != field.default):
            yield field.name, numbers[field.name]


def _grouped(
    members: Sequence[Sequence[Any]],
    fields: Sequence[Mapping[str, Any]],
    main: int,
    names: Mapping[int, str],
    has_all: bool,
) -> Iterator[str]:
    """What says which parameters have numbers of their own, or none, as arguments of the declaration.

    With `has_all`, parameters in none of the groups are not trained.
    """
    base, found, is_known = fields[main], list[str](), True
    for at, (parameters, own) in enumerate(zip(members, fields, strict=True)):
        decay = own.get("weight_decay")
        changes = [] if own["lr"] == base["lr"] else [f"lr_scale={_scale(own['lr'], base['lr'])}"]
        if decay != base.get("weight_decay"):
            if decay == 0 and not changes and _are_vectors(members, at):
                yield "no_decay='auto'"
                continue
            changes.append(f"weight_decay={_shown(decay)}")
        if changes:
            called = [names[id(one)] for one in parameters if id(one) in names]
            is_known = is_known and bool(called)
            found.append(f"farflung.Group({_patterns(called, names.values())}, {', '.join(changes)})")
    grouped = {id(one) for parameters in members for one in parameters}
    left = [name for one, name in names.items() if one not in grouped]
    if has_all and left and len(left) < len(names):
        found.append(f"farflung.Group({_patterns(left, names.values())}, lr_scale=0)")
    if found:
        yield f"groups=({', '.join(found)},)" if is_known else _UNKNOWN


def _scale(rate: float, base: float) -> str:
    return f"{rate / base:g}" if base else "..."


def _are_vectors(members: Sequence[Sequence[Any]], at: int) -> bool:
    """Whether the parameters of that group are all those with fewer than two dimensions."""
    return all(
        (one.ndim < 2) == (number == at) for number, parameters in enumerate(members) for one in parameters
    )


def _patterns(wanted: Sequence[str], everyone: Collection[str]) -> str:
    """Few patterns that fit these names and no other ones, as the argument of a group."""
    others = set(everyone) - set(wanted)
    usable = {
        one for name in wanted for one in _candidates(name) if not any(_fits(one, two) for two in others)
    }
    found, left = list[str](), set(wanted)
    while left:
        best = min(usable, key=lambda one: (-sum(_fits(one, name) for name in left), len(one), one))
        found.append(best)
        left -= {name for name in left if _fits(best, name)}
    if len(found) > _MOST_SHOWN:
        return f"[the names of {len(wanted)} parameters, such as {found[0]!r}]"
    return repr(found[0]) if len(found) == 1 else f"({', '.join(map(repr, found))})"


def _candidates(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield name
    for at in range(1, len(parts)):
        yield f"*.{'.'.join(parts[at:])}"
        yield f"{'.'.join(parts[:at])}.*"


def _fits(pattern: str, name: str) -> bool:
    if pattern.startswith("*"):
        return name.endswith(pattern[1:])
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, bool | str) or value is None:
        return repr(value)
    return f"{float(value):g}"  # type: ignore[arg-type]  # torch also takes a tensor for the rate
