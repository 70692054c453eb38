"""Older formats of the wire become today's here, and nowhere else: what reads a document knows one format.

Format 1 named the opset by a hash of its table, and there was one table. Format 2 gives the lowest version of
the opset that has all ops of the document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from farflung.errors import GraphError
from farflung.opdag.opset import schema_hash

NEWEST = 2

Fields = Annotated[dict[Annotated[str, Meta(max_length=64)], Raw], Meta(max_length=32)]


class _Header(msgspec.Struct):
    version: Annotated[int, Meta(ge=1)]


def upgraded(data: bytes) -> bytes:
    """A document of any supported format, in today's.

    Raises
    ------
    GraphError
        It comes from the future, or from a table that never was.
    msgspec.DecodeError
        It is no document.
    """
    version = msgspec.msgpack.decode(data, type=_Header).version
    if version > NEWEST:
        raise GraphError(
            f"the OP-DAG has format version {version}, this farflung reads up to {NEWEST}: "
            "install a newer farflung"
        )
    if version == NEWEST:
        return data
    fields = msgspec.msgpack.decode(data, type=Fields)
    for older in range(version, NEWEST):
        _UPGRADES[older](fields)
    fields["version"] = Raw(msgspec.msgpack.encode(NEWEST))
    return msgspec.msgpack.encode(fields)


def _from_format_1(fields: Fields) -> None:
    stated = msgspec.msgpack.decode(fields.get("opset", Raw()), type=str)
    if stated != schema_hash(1):
        raise GraphError(
            f"the OP-DAG has format version 1 and opset {stated[:32]!r}, known is {schema_hash(1)!r}: "
            "capture the model again"
        )
    fields["opset"] = Raw(msgspec.msgpack.encode(1))


_UPGRADES: dict[int, Callable[[Fields], None]] = {1: _from_format_1}
