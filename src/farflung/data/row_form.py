"""How sequences become a row: what an item must be, and the places that stay empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farflung.data.padding import IGNORED
from farflung.errors import JobError
from farflung.text import kind_of

if TYPE_CHECKING:
    from torch import Tensor, dtype

POSITIONS = "position_ids"
PADDED = "attention_mask"
"""What tokenizers add to say which places are padding; a packed row has no use for it."""
Kinds = Mapping[str, "dtype"]
"""The dtype of each column."""


@dataclass(frozen=True)
class RowForm:
    """How sequences become a row of `length` places: see `farflung.data.Pack` for its fields."""

    length: int
    fill: Mapping[str, float] = field(default_factory=dict)
    labels: str = "labels"
    shift: bool = True
    truncate: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 1:
            raise JobError(f"length must be a whole number of at least 1, found {self.length!r}")

    def sequence(self, item: Any, number: int) -> dict[str, Tensor]:
        """An item's columns, each of the same length from 1 to that of a row.

        Raises
        ------
        JobError
            It cannot be a part of a row; the message names the item and what is wrong.
        """
        import torch

        if not isinstance(item, Mapping):
            raise JobError(f"item {number}: a dict of tensors was expected to pack, found {kind_of(item)}")
        if POSITIONS in item:
            raise JobError(f"item {number} has {POSITIONS!r}, which Pack makes: leave it out")
        if self.labels not in item:
            raise JobError(
                f"item {number} has no {self.labels!r}, only {sorted(item)}: give Pack(labels=NAME), the"
                " column of targets"
            )
        columns = {}
        for name, value in item.items():
            try:
                columns[name] = torch.as_tensor(value)
            except (TypeError, ValueError, RuntimeError):
                raise JobError(
                    f"item {number}: {name!r} is no tensor or list of numbers: {value!r:.60}"
                ) from None
        return self._fitted(columns, number)

    def _fitted(self, columns: dict[str, Tensor], number: int) -> dict[str, Tensor]:
        lengths = {name: len(tensor) if tensor.dim() else None for name, tensor in columns.items()}
        length = lengths[self.labels]
        if any(other != length for other in lengths.values()) or length is None:
            raise JobError(f"item {number}: its columns must have one length, found {lengths}")
        if not length:
            raise JobError(f"item {number} is empty: leave it out")
        kind = columns[self.labels].dtype
        if not kind.is_signed or kind.is_floating_point or kind.is_complex:
            raise JobError(
                f"item {number}: {self.labels!r} is {kind}, which has no {IGNORED} for masked places: give"
                " labels as signed integers, such as torch.int64"
            )
        if length > self.length and not self.truncate:
            raise JobError(
                f"item {number} has length {length}, a row {self.length}: make rows longer, or give"
                " truncate=True"
            )
        if (mask := columns.pop(PADDED, None)) is not None and not bool(mask.all()):
            raise JobError(f"item {number} is padded ({PADDED!r} has zeros): give items without padding")
        return {name: tensor[: self.length] for name, tensor in columns.items()}

    def kinds(self, first: Mapping[str, Tensor]) -> Kinds:
        """The columns and dtypes of the first sequence, which all others must have.

        Raises
        ------
        JobError
            It lacks a column that `fill` names.
        """
        if unknown := sorted({*self.fill} - {*first, PADDED}):
            raise JobError(f"fill names {unknown}, but the columns of the first item are {sorted(first)}")
        return {name: tensor.dtype for name, tensor in first.items()}

    def require_alike(self, kinds: Kinds, sequence: Mapping[str, Tensor], number: int) -> None:
        """Refuse a sequence with other columns or dtypes than the first one, which would change its row's."""
        if sequence.keys() != kinds.keys():
            raise JobError(
                f"item {number} has other columns than the first: {sorted(kinds)} and {sorted(sequence)}"
            )
        for name, tensor in sequence.items():
            if tensor.dtype != kinds[name]:
                raise JobError(
                    f"item {number}: {name!r} is {tensor.dtype}, in the first item {kinds[name]}: give all"
                    " items the same"
                )

    def row(self, sequences: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The row of these sequences, one after the other, and the places that stay empty.

        Empty places are one more sequence, whose labels are all masked.
        """
        import torch

        lengths = [len(one[self.labels]) for one in sequences]
        rest = self.length - sum(lengths)
        first = sequences[0]
        parts = {name: [one[name] for one in sequences] for name in first}
        if self.shift:
            parts[self.labels] = [_begun(labels) for labels in parts[self.labels]]
        found = {name: torch.cat([*parts[name], self._filling(name, first[name], rest)]) for name in first}
        positions = [torch.arange(length) for length in (*lengths, rest)]
        return {**found, POSITIONS: torch.cat(positions)}

    def _filling(self, name: str, like: Tensor, rest: int) -> Tensor:
        return like.new_full(
            (rest, *like.shape[1:]), self.fill.get(name, IGNORED if name == self.labels else 0)
        )


def _begun(labels: Tensor) -> Tensor:
    """Labels whose first one is masked: in a row, the sequence before would be asked for it."""
    labels = labels.clone()
    labels[0] = IGNORED
    return labels
