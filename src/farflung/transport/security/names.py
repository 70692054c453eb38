"""Names of certificate holders: an id, a role, and the DNS name that contains both."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Literal, get_args

from farflung.errors import IdentityError

Role = Literal["broker", "worker", "submitter", "viewer", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

BROKER_ID = "broker"
MAXIMUM_ID_LENGTH = 40
DOMAIN = "farflung.internal"

_ID = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUFFIX_LENGTH = 5


def check_id(text: str) -> str:
    """Return `text` if it is a valid id (one DNS label); else raise IdentityError."""
    if len(text) <= MAXIMUM_ID_LENGTH and _ID.fullmatch(text):
        return text
    raise IdentityError(
        f"{text[:60]!r} cannot be an id: use 1 to {MAXIMUM_ID_LENGTH} lowercase letters, digits and '-', "
        "with no '-' at either end"
    )


def check_role(text: str) -> Role:
    """Return `text` if it is a role; else raise IdentityError."""
    if text in ROLES:
        return text
    raise IdentityError(f"{text[:60]!r} is not a role: use one of {', '.join(ROLES)}")


def holder_name(id: str, role: str) -> str:
    """The DNS name in the certificate of a holder, `<id>.<role>.farflung.internal`."""
    return f"{check_id(id)}.{check_role(role)}.{DOMAIN}"


def parse_holder_name(name: str) -> tuple[str, Role]:
    """Read (id, role) from a certificate's DNS name; IdentityError if it is not a holder's name."""
    labels = name.split(".", 2)
    if len(labels) != 3 or labels[2] != DOMAIN:
        raise IdentityError(f"expected a certificate for <id>.<role>.{DOMAIN}, found one for {name[:100]!r}")
    return check_id(labels[0]), check_role(labels[1])


def default_id(host: str, public_key: bytes) -> str:
    """A likely unique id: the host's name and a short suffix drawn from the holder's public key.

    The suffix is as random as the key and stays the same when an interrupted join is repeated.
    """
    suffix = base64.b32encode(hashlib.sha256(public_key).digest()).decode().lower()[:_SUFFIX_LENGTH]
    base = re.sub(r"[^a-z0-9]+", "-", host.split(".")[0].lower()).strip("-")
    base = base[: MAXIMUM_ID_LENGTH - _SUFFIX_LENGTH - 1].rstrip("-")
    return f"{base or 'host'}-{suffix}"
