"""What `farflung launch` does with a script: it finds or makes the token, and writes or submits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from farflung.cli.process.identity import has_authority, token_from
from farflung.cli.render.output import note
from farflung.errors import IdentityError, LaunchError
from farflung.text import count_of, first_line, with_article
from farflung.transport.security.identity_folder import folder_of

if TYPE_CHECKING:
    from farflung.cli.options.launching import Delivery
    from farflung.launchers import Launcher
    from farflung.transport.security.tokens import Token


def deliver(launcher: Launcher, delivery: Delivery) -> None:
    """Write the launcher's script to a file, or submit it, or print it.

    Raises
    ------
    LaunchError
        The script cannot be written, or what should run it is missing.
    IdentityError
        There is no token where one is needed, or it does not let all of the workers in.
    """
    from farflung.launchers import SubmittingLauncher

    _warn_of_loopback(launcher)
    if delivery.submit:
        assert isinstance(launcher, SubmittingLauncher)
        launcher.require_program()  # before a token is made
    launcher.render("token")  # likewise: a mistake in an option must not cost one
    given = token_from(delivery.token, delivery.token_file)
    broker = folder_of("broker", delivery.broker_folder)
    needed = given is None and _needs_token(launcher, delivery.submit, broker)
    text = _usable(given, launcher.workers.count, broker, needed)
    script = launcher.render(text)
    if delivery.output is not None:
        _write(delivery.output, script, launcher.token_in_script)
    if delivery.submit:
        assert isinstance(launcher, SubmittingLauncher)
        if code := launcher.submit(script, text):
            raise typer.Exit(code)
    elif delivery.output is None:
        if launcher.token_in_script:
            note("this holds a token, so keep it secret: --output FILE writes a file that only you can read")
        typer.echo(script, nl=False)


def _needs_token(launcher: Launcher, submit: bool, broker: Path) -> bool:
    """Whether to make or ask for a token: not if workers may do without one, and none can be made here."""
    from farflung.launchers import SubmittingLauncher

    if not submit or not isinstance(launcher, SubmittingLauncher):
        return launcher.token_in_script
    if launcher.token_is_optional and not has_authority(broker):
        note("no token: only hosts that have joined before can start")
        return False
    return launcher.token_in_script or launcher.token_in_environment


def _usable(text: str | None, workers: int, broker: Path, needed: bool) -> str | None:
    """The token, checked as far as this machine knows it; one that is made here if there is none."""
    from farflung.launchers.launcher import TOKEN_HOURS, TOKEN_VARIABLE, uses_for
    from farflung.transport.security.tokens import Token

    if text is not None:
        try:
            token = Token.parse(text)
        except IdentityError as error:
            where = f"{TOKEN_VARIABLE}: " if text == os.environ.get(TOKEN_VARIABLE) else ""
            raise IdentityError(f"{where}{error}") from None
        if token.role != "worker":
            raise IdentityError(f"the token is for {with_article(token.role)}, not for workers")
        if has_authority(broker):
            _check_uses(token, workers, broker)
        return token.text
    if not needed:
        return None
    uses = uses_for(workers)
    if not has_authority(broker):
        raise IdentityError(
            f"no token: run `farflung token create --role worker --uses {uses}` on the broker's machine, and"
            " set FARFLUNG_TOKEN here to what it prints"
        )
    from farflung.broker.security.authority import create_token

    note(f"made a token for {count_of(uses, 'use')} within {TOKEN_HOURS:g} h")
    return create_token(broker, "worker", uses, TOKEN_HOURS).text


def _check_uses(token: Token, workers: int, broker: Path) -> None:
    """Refuse a token of this machine's broker that lets fewer workers in, or none any more."""
    from farflung.broker.security.tokens import known_tokens, token_id
    from farflung.transport.security.certificates import certificates_from_pem, fingerprint
    from farflung.transport.security.identity import AUTHORITY_FILE

    authorities = certificates_from_pem((broker / AUTHORITY_FILE).read_bytes())
    if token.fingerprint not in map(fingerprint, authorities):
        return  # of another broker, which alone knows
    id = token_id(token.digest)
    known = next((known for known in known_tokens(broker) if known.id == id), None)
    left = known.uses - known.used if known is not None and known.state == "good" else 0
    if left >= workers:
        return
    found = f"has {count_of(left, 'use')} left"
    if known is None or known.state == "expired":
        found = "was revoked" if known is None else "has expired"
    raise IdentityError(
        f"token {id} {found}, but {count_of(workers, 'worker')} need one each: farflung token create"
        f" --role worker --uses {workers}"
    )


def _warn_of_loopback(launcher: Launcher) -> None:
    from farflung.transport.net.addresses import is_loopback, parse_address

    hosts = [parse_address(one)[0] for one in launcher.workers.broker.split(",")]
    if all(host == "localhost" or is_loopback(host) for host in hosts):
        note(
            f"{launcher.workers.broker} leads each worker to its own machine: elsewhere the broker has"
            " another address"
        )


def _write(output: Path, script: str, is_secret: bool) -> None:
    """Write the script; only its owner may read one that holds the token."""
    from farflung.files import write_atomically

    try:
        write_atomically(output.expanduser(), script.encode(), 0o600 if is_secret else 0o644)
    except OSError as error:
        raise LaunchError(f"{output} cannot be written: {error.strerror or first_line(error)}") from None
    secret = "it holds a token, so keep it secret; " if is_secret else ""
    note(f"wrote {output}: {secret}its first lines say how to run it")
