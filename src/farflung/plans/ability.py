"""The ops and element types that a worker's backend supports, as far as planning needs to know."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MOST_LACKS = 1000
OP_NAME = r"^[A-Za-z0-9_.]{1,128}$"
OpName = Annotated[str, Meta(pattern=OP_NAME)]
Lacks = Annotated[tuple[OpName, ...], Meta(max_length=MOST_LACKS)]


class Ability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest opset version that a worker supports, and what of it its `framework` or device lacks.

    That are ops, and element types such as bfloat16.

    `kind` is that of its device, such as cpu or cuda, and `kernels` the digest of what its kernels compute
    (`runtime.kernels`); empty is unknown.
    """

    opset: int
    lacks: Lacks = ()
    framework: str = ""
    kind: str = ""
    kernels: str = ""
