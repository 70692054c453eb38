"""Check that a model keeps the sequences of packed rows apart.

Nothing fails if it does not: a model that ignores positions, or one of transformers that keeps a cache, lets
each sequence see those before it, and its loss looks as good as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farflung.data.packing import POSITIONS, RowForm
from farflung.data.padding import IGNORED
from farflung.data.streams import StreamItems
from farflung.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.api.job import Job

MOST_ROWS = 16
"""Rows that are read to find one with two sequences."""
SAME = 1e-6
"""The relative difference of losses below which they are the same."""


def require_apart(job: Job) -> None:
    """Change the first sequence of a packed row, and compare the loss of the others.

    Raises
    ------
    JobError
        The loss changes, so the sequences see each other.
    """
    form = form_of(job.items)
    row = None if form is None else _shared_row(job, form)
    if form is None or row is None:
        return
    before, after = (_loss(job, one) for one in _pair(row, form))
    if not abs(before - after) <= SAME * abs(before):
        raise JobError(
            f"the sequences of a packed row see each other: another first one changes the loss of the rest"
            f" from {before:.6g} to {after:.6g}. A model of transformers must keep no cache"
            " (model.config.use_cache = False); one of your own must make its mask of position_ids"
            " (farflung.data.block_mask)"
        )


def form_of(items: Any) -> RowForm | None:
    """The form of a packed data set's rows, also of a part of it; None for all other data."""
    items = items.source if isinstance(items, StreamItems) else items
    while not isinstance(form := getattr(items, "form", None), RowForm):
        if (items := getattr(items, "dataset", None)) is None:  # as torch's Subset has it
            return None
    return form


def _shared_row(job: Job, form: RowForm) -> dict[str, Tensor] | None:
    """One of the first rows in which targets come after the first sequence."""
    count = MOST_ROWS if isinstance(job.items, StreamItems) else min(MOST_ROWS, len(job.items))
    for number in range(count):
        row: dict[str, Tensor] = job.items[number]
        if bool((row[form.labels][_first_length(row) :] != IGNORED).any()):
            return row
    return None


def _first_length(row: dict[str, Tensor]) -> int:
    """The length of a row's first sequence."""
    begins = (row[POSITIONS] == 0).nonzero().flatten().tolist()
    return int(begins[1]) if len(begins) > 1 else len(row[POSITIONS])


def _pair(row: dict[str, Tensor], form: RowForm) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The row with no target in its first sequence, and the same with other values in that sequence."""
    length = _first_length(row)
    one = {name: tensor.clone() for name, tensor in row.items()}
    one[form.labels][:length] = IGNORED
    other = {name: tensor.clone() for name, tensor in one.items()}
    for name in other.keys() - {form.labels, POSITIONS}:
        first, least, most = other[name][:length], row[name].amin(), row[name].amax()
        other[name][:length] = most.where(first != most, least)  # values that the model knows
    return one, other


def _loss(job: Job, row: dict[str, Tensor]) -> float:
    import torch

    from farflung.opdag.capture import LossModule
    from farflung.runtime.parity.microbatch import shared_copy

    module = LossModule(shared_copy(job.model), job.loss).eval()
    with torch.no_grad():
        return float(module(job.collated([row])))
