"""Recognise an `assert` on a tensor's data: workers leave it out, so capture takes it as true.

The comparison with eager, which runs the user's own forward, still checks it on the first batch.
"""

from __future__ import annotations

import dis
from functools import cache
from types import CodeType, FrameType

_JUMPS = ("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE")
_BETWEEN = ("CACHE", "TO_BOOL", "NOT_TAKEN")


def is_asserted(frame: FrameType | None) -> bool:
    """Whether what `frame` calls now is all that an `assert` statement of it asks."""
    return frame is not None and frame.f_lasti in _asserting(frame.f_code)


@cache
def _asserting(code: CodeType) -> frozenset[int]:
    """The places in a function after which only the jump over the raising of an AssertionError follows.

    They are the jump itself, which asks a tensor for its truth, and the call before it.
    """
    known = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    found = set[int]()
    for before, jump, after in zip(known, known[1:], known[2:], strict=False):
        is_raised = after.opname == "LOAD_ASSERTION_ERROR" or after.argrepr == "AssertionError"
        if jump.opname in _JUMPS and is_raised:
            found |= {before.offset, jump.offset, *_to_bool(code, before.offset, jump.offset)}
    return frozenset(found)


def _to_bool(code: CodeType, start: int, end: int) -> list[int]:
    """Where Python 3.13 and later ask for the truth, before the jump."""
    return [one.offset for one in dis.get_instructions(code) if start < one.offset < end]
