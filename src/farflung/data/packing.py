"""`Pack` and `PackStream`: several short sequences in each row, which do not see each other.

A row says where its sequences begin by positions that start at 0 again. Causal models of transformers make
their mask of them; `block_mask` makes it for a model of your own. Such a mask depends on the positions alone,
so a segment computes it where it is read: only the positions, eight bytes a place, are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farflung.data.best_fit import OpenRows, best_fit_decreasing
from farflung.data.row_form import Kinds, RowForm
from farflung.errors import JobError
from farflung.text import kind_of

if TYPE_CHECKING:
    from torch import Tensor


class Pack:
    """A data set whose items are rows of `length` places, each with as many sequences as fit.

    Which sequences share a row is fixed by their lengths (best fit, the longest first); the job's seed orders
    the rows. The items of `data` are dicts of tensors or lists of numbers that have one length in an item,
    any in different ones, and the same dtypes in all; labels are signed integers. An "attention_mask" of ones
    is left out. A row has the same columns, one after the
    other, and "position_ids", int64, which start at 0 in each sequence and in the places that stay empty.

    The loss of a row, and its gradients, are those of its sequences alone, with `Job(counted=LABELS)` also
    where rows have different numbers of targets, if the model lets no sequence see another: causal models of
    transformers do if they are given "position_ids" and keep no cache (`model.config.use_cache = False`),
    models of your own by `block_mask`. A job checks that before it begins, or says why it could not.

    Parameters
    ----------
    data
        A map-style data set of sequences.
    length
        The places of each row.
    fill
        What stands in empty places, by column of the first item: 0 unless given here, -100 in labels.
    labels
        The column of targets.
    shift
        The model itself compares place t with the label of place t + 1, as those of transformers do. So the
        first label of each sequence is masked, which the sequence before it would be asked for.
    truncate
        Cut longer sequences at their end, rather than refuse them.
    lengths
        The length of each sequence, if you know them; otherwise all items are read once for that.

    Raises
    ------
    JobError
        `data` is a stream, or an item cannot be packed; when read, an item has another length than before.
    """

    def __init__(
        self,
        data: Any,
        length: int,
        fill: Mapping[str, float] | None = None,
        *,
        labels: str = "labels",
        shift: bool = True,
        truncate: bool = False,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.form = RowForm(length, fill or {}, labels, shift, truncate)
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise JobError(
                f"Pack needs a data set with __len__ and __getitem__, found {kind_of(data)}: pack a stream"
                " with farflung.data.PackStream"
            )
        if not len(data):
            raise JobError("there is nothing to pack: the data set has no items")
        self._data = data
        self._kinds: Kinds | None = None  # known once the first item is read
        self._lengths = self._read_lengths() if lengths is None else self._given_lengths(lengths)
        self._rows = best_fit_decreasing(self._lengths, length)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Row `index`: tensors (length, ...) by name."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} rows")
        return self.form.row([self._sequence(number) for number in self._rows[index]])

    def sequences_in(self, index: int) -> int:
        """The number of sequences in row `index`, which is not read for that."""
        return len(self._rows[index])

    def _read(self, number: int) -> dict[str, Tensor]:
        found = self.form.sequence(self._data[number], number)
        if self._kinds is None:
            first = self.form.sequence(self._data[0], 0) if number else found
            self._kinds = self.form.kinds(first)
        self.form.require_alike(self._kinds, found, number)
        return found

    def _sequence(self, number: int) -> dict[str, Tensor]:
        found = self._read(number)
        if (length := len(found[self.form.labels])) != self._lengths[number]:
            raise JobError(
                f"item {number} has length {length}, and had {self._lengths[number]} when rows were made:"
                " items to pack must not change"
            )
        return found

    def _read_lengths(self) -> list[int]:
        return [len(self._read(number)[self.form.labels]) for number in range(len(self._data))]

    def _given_lengths(self, lengths: Sequence[int]) -> list[int]:
        found = [int(length) for length in lengths]
        if len(found) != len(self._data):
            raise JobError(f"lengths= has {len(found)} numbers, the data set {len(self._data)} items")
        most = self.form.length
        for number, length in enumerate(found):
            if length < 1 or (length > most and not self.form.truncate):
                raise JobError(f"item {number} has length {length}, which must be from 1 to {most}")
        return [min(length, most) for length in found]


class PackStream:
    """A stream of rows of `length` places, each with several sequences of a stream.

    As `Pack`, but sequences come one after the other: each goes to the fullest of `open_rows` rows that has
    room for it. If none has, a new row begins, and the fullest one is given out once there are more. A
    sequence that fills a row is given out at once. At the end of an epoch the others follow. So rows depend
    on the stream and these settings alone, and a run that is resumed reads the stream from its beginning.

    Parameters
    ----------
    stream
        Has `__iter__`, which begins anew each time, and may have `set_epoch`.
    length, fill, labels, shift, truncate
        As for `Pack`.
    open_rows
        Rows that are filled at the same time. More of them leave fewer places empty.

    Raises
    ------
    JobError
        An item cannot be packed, when it is read.
    """

    def __init__(
        self,
        stream: Any,
        length: int,
        fill: Mapping[str, float] | None = None,
        *,
        labels: str = "labels",
        shift: bool = True,
        truncate: bool = False,
        open_rows: int = 32,
    ) -> None:
        if not hasattr(stream, "__iter__") or isinstance(stream, Iterator):
            raise JobError(
                f"PackStream needs an object whose __iter__ begins anew, such as a torch IterableDataset,"
                f" found {kind_of(stream)}"
            )
        if isinstance(open_rows, bool) or not isinstance(open_rows, int) or open_rows < 1:
            raise JobError(f"open_rows must be a whole number of at least 1, found {open_rows!r}")
        self.form = RowForm(length, fill or {}, labels, shift, truncate)
        self._stream = stream
        self._open_rows = open_rows

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the next pass to the stream, if it wants to know."""
        if callable(set_epoch := getattr(self._stream, "set_epoch", None)):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The rows of one epoch."""
        form, open_rows = self.form, OpenRows(self.form.length)
        rows: dict[int, list[dict[str, Tensor]]] = {}  # by the number of their first sequence
        kinds: Kinds | None = None
        for number, item in enumerate(self._stream):
            sequence = form.sequence(item, number)
            kinds = form.kinds(sequence) if kinds is None else kinds
            form.require_alike(kinds, sequence, number)
            length = len(sequence[form.labels])
            if length == form.length:
                yield form.row([sequence])
                continue
            row = open_rows.take(length)
            if row is None:
                if len(open_rows) == self._open_rows:
                    yield form.row(rows.pop(open_rows.take_fullest()))
                row = number
            rows.setdefault(row, []).append(sequence)
            used = sum(len(one[form.labels]) for one in rows[row])
            if used == form.length:
                yield form.row(rows.pop(row))
            else:
                open_rows.put(row, form.length - used)
        for row in sorted(rows):
            yield form.row(rows[row])


def block_mask(position_ids: Tensor) -> Tensor:
    """Which places see which: those of the same sequence up to their own.

    Parameters
    ----------
    position_ids : int64 (batch, length)
        Positions that start at 0 in each sequence of a row, as `Pack` makes them.

    Returns
    -------
    Bool (batch, 1, length, length), true where the place of the last dimension is seen: an `attn_mask` of
    `scaled_dot_product_attention`, for all heads.
    """
    import torch

    length = position_ids.shape[1]
    sequence = (position_ids == 0).cumsum(1)
    is_same = sequence[:, :, None] == sequence[:, None, :]
    places = torch.arange(length, device=position_ids.device)
    return (is_same & (places[:, None] >= places[None, :]))[:, None]
