"""`Pad`: a collate for items of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farflung.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
FILLS: Mapping[str, float] = {"labels": IGNORED}


@dataclass(frozen=True)
class Pad:
    """Pads items to one length, as `Job(collate=)`.

    A job is captured with the shapes of these lengths, so a batch does not get that of its longest item, but
    the least one here that holds it. The first dimension of each tensor (or list of numbers) is filled up at
    its end; numbers alone stay as they are.

    Parameters
    ----------
    length
        The length of each row of a batch, or several lengths, ascending (*length buckets*): each microbatch
        gets the least that holds its longest item, and computes and sends no more than that length needs.
    fill
        What stands in added places, by name: by default -100 for "labels", so that they don't count, and 0
        for all others. Give the tokenizer's `pad_token_id` for "input_ids" if the model reads it.
    truncate
        Cut longer items at their end, rather than refuse them.

    Raises
    ------
    JobError
        A length is below 1, several are not ascending, or a fill is None; when called, an item is
        longer, or is no dict of tensors, lists or numbers.
    """

    length: int | Sequence[int]
    fill: Mapping[str, float] = field(default_factory=dict)
    truncate: bool = False

    def __post_init__(self) -> None:
        given: Any = self.length
        lengths = list(given) if isinstance(given, Sequence) else [given]
        if not lengths or not all(map(_is_length, lengths)):
            raise JobError(f"length must be a whole number of at least 1, or several, found {given!r}")
        if lengths != sorted({*lengths}):
            raise JobError(f"lengths must be ascending, each once, found {given!r}")
        for name, filling in self.fill.items():
            if filling is None:
                raise JobError(
                    f"nothing is given to fill {name!r} with: if your tokenizer has no pad token, give its"
                    " eos_token_id"
                )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of batches, ascending."""
        return (self.length,) if isinstance(self.length, int) else tuple(self.length)

    def at(self, length: int, truncate: bool = False) -> Pad:
        """One that brings all batches to this length; with `truncate` it cuts longer items anyway."""
        return Pad(length, self.fill, truncate or self.truncate)

    def holds(self, item: Any, length: int) -> bool:
        """Whether an item is no longer than `length`."""
        return max(map(_length, item.values()), default=0) <= length

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """Tensors by name: (len(items), length, ...), or (len(items),) of numbers."""
        import torch

        length = self._length_of(items)
        rows = [self._row(item, length) for item in items]
        for row in rows:
            if row.keys() != rows[0].keys():
                raise JobError(f"every item must have the same names, found {[*rows[0]]} and {[*row]}")
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _length_of(self, items: Sequence[Any]) -> int:
        """The least length that holds these items, or the greatest."""
        *shorter, longest = self.lengths
        if not shorter:
            return longest
        values = [value for item in items if isinstance(item, Mapping) for value in item.values()]
        most = max(map(_length, values), default=0)
        return next((length for length in shorter if most <= length), longest)

    def _row(self, item: Any, length: int) -> dict[str, Tensor]:
        if not isinstance(item, Mapping) or not item:
            raise JobError(f"an item to pad must be a dict of tensors, found {type(item).__name__}")
        return {name: self._padded(name, value, length) for name, value in item.items()}

    def _padded(self, name: str, value: Any, length: int) -> Tensor:
        import torch

        if isinstance(value, str):
            raise JobError(
                f"{name!r} of an item is text: {value!r:.60}: tokenize it, or leave it out:"
                f" data.remove_columns([{name!r}])"
            )
        try:
            tensor = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise JobError(f"{name!r} of an item is no tensor or list of numbers: {value!r:.60}") from None
        if not tensor.dim():
            return tensor
        if len(tensor) > length:
            if not self.truncate:
                raise JobError(
                    f"{name!r} of an item has length {len(tensor)}, Pad has {length}: make that longer,"
                    " or give truncate=True"
                )
            tensor = tensor[:length]
        filling = self.fill.get(name, FILLS.get(name, 0))
        return torch.cat([tensor, tensor.new_full((length - len(tensor), *tensor.shape[1:]), filling)])


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _length(value: Any) -> int:
    """The length of a tensor or list; 0 of a number, or of what cannot be padded."""
    try:
        return len(value)
    except TypeError:
        return 0
