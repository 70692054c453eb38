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

    A job is captured with one shape, so every batch gets this length, not that of its longest item. The first
    dimension of each tensor (or list of numbers) is filled up at its end; numbers alone stay as they are.

    Parameters
    ----------
    length
        The length of each row of a batch.
    fill
        What stands in added places, by name: by default -100 for "labels", so that they don't count, and 0
        for all others. Give the tokenizer's `pad_token_id` for "input_ids" if the model reads it.
    truncate
        Cut longer items at their end, rather than refuse them.

    Raises
    ------
    JobError
        `length` is below 1; when called, an item is longer, or is no dict of tensors, lists or numbers.
    """

    length: int
    fill: Mapping[str, float] = field(default_factory=dict)
    truncate: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise JobError(f"length must be a whole number of at least 1, found {self.length!r}")

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """Tensors by name: (len(items), length, ...), or (len(items),) of numbers."""
        import torch

        rows = [self._row(item) for item in items]
        for row in rows:
            if row.keys() != rows[0].keys():
                raise JobError(f"every item must have the same names, found {[*rows[0]]} and {[*row]}")
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _row(self, item: Any) -> dict[str, Tensor]:
        if not isinstance(item, Mapping) or not item:
            raise JobError(f"an item to pad must be a dict of tensors, found {type(item).__name__}")
        return {name: self._padded(name, value) for name, value in item.items()}

    def _padded(self, name: str, value: Any) -> Tensor:
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
        if len(tensor) > self.length:
            if not self.truncate:
                raise JobError(
                    f"{name!r} of an item has length {len(tensor)}, Pad has {self.length}: make that longer,"
                    " or give truncate=True"
                )
            tensor = tensor[: self.length]
        filling = self.fill.get(name, FILLS.get(name, 0))
        return torch.cat([tensor, tensor.new_full((self.length - len(tensor), *tensor.shape[1:]), filling)])
