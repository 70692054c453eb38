"""Find or obtain the identity with which a command runs.

An identity is a folder with a certificate and its key, by default below FARFLUNG_HOME (~/.farflung). The
first time, a token is exchanged for one. A running worker locks its folder, so that no other command replaces
its identity.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli.render.output import note
from farflung.errors import FarflungError, IdentityError
from farflung.text import format_utc, with_article

if TYPE_CHECKING:
    from farflung.transport.security.identity import Identity
    from farflung.transport.security.tokens import TokenRole


HELD_FILE = "running"


def hold_folder(folder: Path) -> None:
    """Lock `folder` for a running worker until this process ends; does nothing if the folder is read-only."""
    import fcntl

    with suppress(OSError):
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # shared: the broker refuses the second of two workers
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())


def require_free_folder(folder: Path) -> None:
    """Raise IdentityError if a worker runs on `folder`, or may run there without this process seeing it."""
    import fcntl

    try:
        descriptor = os.open(folder / HELD_FILE, os.O_RDWR)
    except FileNotFoundError:
        return
    except OSError as error:
        raise IdentityError(
            f"this token would replace the identity in {folder}, and farflung cannot see whether a worker"
            f" uses it ({HELD_FILE}: {error.strerror}): choose another folder with --folder"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        raise IdentityError(
            f"this token would replace the identity in {folder}, which a running worker (process {holder})"
            " uses: choose another folder with --folder"
        ) from None
    except OSError:
        return  # this file system has no locks
    finally:
        os.close(descriptor)


def home_folder() -> Path:
    """The folder that contains all identities of this user."""
    return Path(os.environ.get("FARFLUNG_HOME") or Path.home() / ".farflung").expanduser()


def folder_of(role: str, given: Path | None) -> Path:
    """`given`, or the default folder of a role (broker, worker, submitter or viewer)."""
    return home_folder() / role if given is None else given.expanduser()


CLOCK_WORTH_SAYING_SECONDS = 1.0
OWN_TOKEN_HOURS = 0.1

BrokerOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the broker, or several with commas between. [default: those joined before]",
    ),
]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the identity. [default: one under ~/.farflung]")
]
TokenText = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="FARFLUNG_TOKEN",
        help="Token from `farflung token create`; needed only the first time.",
    ),
]


async def obtain_identity(
    folder: Path, role: TokenRole, broker: str | None, token: str | None, name: str | None = None
) -> Identity:
    """The identity in `folder`; joins with the token if there is none, or if the token is another broker's.

    Without `broker`, the address of the token's broker comes from this user's identities, or from a broker on
    this machine.

    Raises
    ------
    IdentityError
        There is neither identity nor token, the identity has another name than `name`, a running worker would
        lose it, or the token was refused.
    ConnectionFailed
        The broker cannot be reached.
    """
    from farflung.transport.net.addresses import parse_addresses
    from farflung.transport.security.enrolment import enrol
    from farflung.transport.security.identity import Identity
    from farflung.transport.security.tokens import Token

    broker = None if broker is None else ",".join(parse_addresses(broker))
    if token is None:
        kept = Identity.load(folder)
        if role not in (kept.role, "viewer"):  # any role may view
            found, needed = with_article(kept.role), with_article(role)
            raise IdentityError(
                f"{folder} has the identity of {found}, but {needed}'s is needed: use another --folder"
            )
        _require_name(kept, folder, name)
        return await _fresh(_at(kept, broker))
    parsed = Token.parse(token)
    known = _known(folder, parsed.fingerprint)
    if known is not None and known.role == role:
        _require_name(known, folder, name)
        note(f"the token was not needed: {folder} already has the identity of {role} {known.id}")
        return await _fresh(_at(known, broker))
    broker = broker or _address_of(parsed.fingerprint)
    if broker is None:
        raise IdentityError("the token does not contain its broker's address: add --broker HOST:PORT")
    replaced = _kept(folder)
    if replaced is not None:
        require_free_folder(folder)
    note(f"dialling the broker at {broker}")
    enrolment = await enrol(broker, parsed, folder, role, name)
    _say_clock(enrolment.clock_ahead_seconds)
    if replaced is not None:
        note(
            f"replaced the identity that {folder} had: {replaced.role} {replaced.id} at {replaced.broker};"
            " give each broker a folder of its own with --folder to keep both"
        )
    _say_joined(broker, enrolment.identity, folder)
    return enrolment.identity


def has_authority(folder: Path) -> bool:
    """Whether this user may use the certificate authority of the broker in `folder`."""
    from farflung.broker.security.authority import AUTHORITY_KEY_FILE

    return os.access(folder / AUTHORITY_KEY_FILE, os.R_OK)


async def obtain_from_own_broker(folder: Path, role: TokenRole, broker: str | None) -> Identity:
    """An identity at the broker whose folder this is, by a token made for it; it is kept in that folder.

    Whoever has the folder could create the token by hand. The broker has to run.
    """
    from farflung.broker.security.authority import create_token
    from farflung.transport.security.certificates import certificate_from_pem, fingerprint
    from farflung.transport.security.identity import AUTHORITY_FILE

    kept = folder / role
    authority = fingerprint(certificate_from_pem((folder / AUTHORITY_FILE).read_bytes()))
    broker = broker or _listening(folder)
    if broker is None:
        raise IdentityError(f"no broker has run on {folder} yet: start it with farflung broker")
    if _known(kept, authority) is not None:
        return await obtain_identity(kept, role, broker, None)
    token = await asyncio.to_thread(create_token, folder, role, 1, OWN_TOKEN_HOURS)
    return await obtain_identity(kept, role, broker, token.text)


def _require_name(kept: Identity, folder: Path, name: str | None) -> None:
    if name is not None and name != kept.id:
        raise IdentityError(
            f"{folder} has the identity of {kept.id}, but --name is {name}: leave --name out to be {kept.id}"
            f" again, or choose another folder for {name} with --folder"
        )


def _known(folder: Path, fingerprint: bytes) -> Identity | None:
    """An identity that the token's broker issued before, which saves one use of the token."""
    return _kept(folder) if _trusts(folder, fingerprint) else None


def _kept(folder: Path) -> Identity | None:
    """The identity in a folder, if there is one."""
    from farflung.transport.security.identity import Identity

    try:
        return Identity.load(folder)
    except IdentityError:
        return None


def _trusts(folder: Path, fingerprint: bytes) -> bool:
    """Whether the certificate authority in a holder's or broker's folder has this fingerprint."""
    from farflung.transport.security.certificates import certificate_from_pem
    from farflung.transport.security.certificates import fingerprint as fingerprint_of
    from farflung.transport.security.identity import AUTHORITY_FILE

    try:
        return fingerprint_of(certificate_from_pem((folder / AUTHORITY_FILE).read_bytes())) == fingerprint
    except (OSError, IdentityError):
        return False


def _address_of(fingerprint: bytes) -> str | None:
    """The address of the broker with this authority, from this user's identities or a local broker."""
    from farflung.transport.security.tokens import TOKEN_ROLES

    for role in TOKEN_ROLES:
        if known := _known(folder_of(role, None), fingerprint):
            return known.broker
    own = folder_of("broker", None)
    return _listening(own) if _trusts(own, fingerprint) else None


def _listening(folder: Path) -> str | None:
    """The address at which this machine reaches the broker of `folder`, if one has run."""
    from farflung.broker.address_file import read_address
    from farflung.connectivity.advertised import dialled_at

    listening = read_address(folder)
    return dialled_at(listening, ())[0] if listening else None


def _at(identity: Identity, broker: str | None) -> Identity:
    return identity if broker is None else replace(identity, broker=broker)


async def _fresh(identity: Identity) -> Identity:
    """The identity, with its certificate renewed if half of its lifetime is over and the broker answers."""
    if not identity.needs_renewal(time.time()):
        return identity
    from farflung.client.run.broker_client import renew

    try:
        return await renew(identity)
    except FarflungError as error:
        note(f"the certificate of {identity.id} could not be renewed: {error}")
        return identity


def _say_joined(broker: str, identity: Identity, folder: Path) -> None:
    is_kept = not folder.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
    next_time = ""
    if is_kept:
        until = format_utc(identity.expires_at)
        next_time = (
            f"; no token is needed before {until}, or longer if you use it ({folder} has the identity)"
        )
    note(f"joined the broker at {broker} as {identity.role} {identity.id}{next_time}")


def _say_clock(ahead_seconds: float) -> None:
    if abs(ahead_seconds) >= CLOCK_WORTH_SAYING_SECONDS:
        direction = "ahead of" if ahead_seconds > 0 else "behind"
        note(f"this machine's clock is {abs(ahead_seconds):.1f} s {direction} the broker's")
