"""Check that a model keeps the sequences of packed rows apart.

Nothing fails if it does not: a model that ignores positions, or one of transformers that keeps a cache, lets
each sequence see those before it, and its loss looks as good as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from farflung.data.packing import Pack
from farflung.data.padding import IGNORED
from farflung.data.row_form import POSITIONS, RowForm
from farflung.data.streams import StreamItems
from farflung.errors import JobError
from farflung.text import count_of

if TYPE_CHECKING:
    from torch import Tensor

    from farflung.client.api.job import Job

MOST_ROWS = 16
"""Rows that are read to find one in which targets come after the first sequence."""
_UNKNOWN = "it was not checked that sequences of packed rows do not see each other"
_ADVICE = (
    "a model of transformers must keep no cache (model.config.use_cache = False); one of your own must make"
    " its mask of position_ids (farflung.data.block_mask)"
)
SAME = 1e-6
"""The relative difference of losses below which they are the same."""


def require_apart(job: Job) -> str:
    """Change the first sequence of a packed row, and compare the loss of the others.

    Returns
    -------
    Why that was not possible, in words for the user; empty if it was, or if there is nothing to compare.

    Raises
    ------
    JobError
        The loss changes, so the sequences see each other; or it is not finite.
    """
    form = form_of(job.items)
    if form is None:
        return ""
    row, looked_at = _shared_row(job, form)
    if row is None:
        where = f", because in {count_of(looked_at, 'row')} no target comes after the first sequence"
        return unchecked(job, where)
    before, after = (_loss(job, one) for one in _pair(row, form))
    if not (math.isfinite(before) and math.isfinite(after)):
        raise JobError(
            f"the loss of a packed row is not finite: it is {before:.6g}, and {after:.6g} with another first"
            " sequence, so it cannot be checked that sequences do not see each other"
        )
    if abs(before - after) > SAME * abs(before):
        raise JobError(
            f"the sequences of a packed row see each other: another first one changes the loss of the rest"
            f" from {before:.6g} to {after:.6g}; {_ADVICE}"
        )
    return ""


def unchecked(job: Job, where: str = "") -> str:
    """What to tell if nothing is compared; empty if no row of the job has several sequences."""
    if form_of(job.items) is None or next(_candidates(job.items), None) is None:
        return ""
    return f"{_UNKNOWN}{where}: {_ADVICE}"


def form_of(items: Any) -> RowForm | None:
    """The form of a packed data set's rows, also of a part of it; None for all other data."""
    items = items.source if isinstance(items, StreamItems) else items
    while not isinstance(form := getattr(items, "form", None), RowForm):
        if (items := getattr(items, "dataset", None)) is None:  # as torch's Subset has it
            return None
    return form


def _shared_row(job: Job, form: RowForm) -> tuple[dict[str, Tensor] | None, int]:
    """One of the first rows in which targets come after the first sequence, and how many were read."""
    looked_at = 0
    for number in islice(_candidates(job.items), MOST_ROWS):
        row: dict[str, Tensor] = job.items[number]
        looked_at += 1
        if bool((row[form.labels][_first_length(row) :] != IGNORED).any()):
            return row, looked_at
    return None, looked_at


def _candidates(items: Any) -> Iterator[int]:
    """The rows that may have several sequences: long sequences are first, and alone in theirs."""
    for number in range(MOST_ROWS if isinstance(items, StreamItems) else len(items)):
        if _sequences_in(items, number) != 1:
            yield number


def _sequences_in(items: Any, number: int) -> int | None:
    """How many sequences a row has; None if only reading it would tell."""
    from torch.utils.data import Subset

    if isinstance(items, Pack):
        return items.sequences_in(number)
    return _sequences_in(items.dataset, int(items.indices[number])) if isinstance(items, Subset) else None


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
