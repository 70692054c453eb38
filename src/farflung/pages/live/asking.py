"""What a page posts to have something done, and the answer."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.broker.acting import Action


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action, and a token of somebody who may do it; the action's `type` is its name."""

    token: Annotated[str, Meta(max_length=500)]
    action: Action


class Done(msgspec.Struct, frozen=True):
    """What came of an action."""

    words: str
