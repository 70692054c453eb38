"""What an error in generated code is about, where PyTorch does not say it: an index that is out of range."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from farflung.opdag.segment import Segment
from farflung.runtime.indices import index_ranges, require_in_range
from farflung.runtime.torch_backend.codegen import source_name


def require_indices_in_range(error: Exception, segment: Segment, batch: int, microbatch: int) -> None:
    """Look at the indices that the code which raised `error` was given.

    Raises
    ------
    JobError
        One of them is out of range: the error is about that.
    """
    known = _variables(error, source_name(segment.number))
    for expected in index_ranges(segment, batch):
        indices = known.get(f"v{expected.value:d}")
        if isinstance(indices, Tensor):
            counted = indices if expected.ignored is None else indices[indices != expected.ignored]
            if counted.numel():
                require_in_range(expected, int(counted.min()), int(counted.max()), microbatch)


def _variables(error: Exception, file: str) -> dict[str, Any]:
    """Of the function in `file` that the error passed through."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return {} if trace is None else trace.tb_frame.f_locals
