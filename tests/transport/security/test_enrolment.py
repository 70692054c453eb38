from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.links import nowhere

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store
from farflung.errors import ConnectionFailed, FarflungError, IdentityError, ProtocolError
from farflung.transport.endpoint import Hello, Link, listen
from farflung.transport.handler import Handler
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import certificate_to_pem, fingerprint, public_bytes
from farflung.transport.security.enrolment import Enrolment, enrol
from farflung.transport.security.identity import Identity, key_in
from farflung.transport.security.join_messages import AskAuthority, AskCertificate, TellAuthority
from farflung.transport.security.tokens import Token, TokenRole
from farflung.transport.timeouts import Timeouts

Answering = Callable[[bytes, str], Awaitable[bytes]]
HOUR = 3600.0


@asynccontextmanager
async def door(context: ssl.SSLContext, answer: Answering) -> AsyncIterator[str]:
    """A port that talks to strangers only; gives its HOST:PORT."""
    own = Hello("broker", "broker", "boot", "control")
    listener = await listen("127.0.0.1:0", context, own, _admit_nobody, Timeouts(), answer)
    try:
        yield listener.address
    finally:
        await listener.close("the test is over")


@asynccontextmanager
async def broker(
    folder: Path, clock: Callable[[], float] = time.time
) -> AsyncIterator[tuple[Authority, str]]:
    """A broker's authority behind a real port."""
    with Store(folder) as store:
        authority = Authority.open(folder, store, clock)
        context = authority.identity().server_context(admit_joiners=True)
        async with door(context, authority.on_joiner) as address:
            yield authority, address


def test_a_token_becomes_an_identity(tmp_path: Path) -> None:
    async def run() -> tuple[Enrolment, str]:
        async with broker(tmp_path / "broker") as (authority, address):
            token = authority.create_token("worker")
            return await enrol(address, token, tmp_path / "home", "worker", "lab-1"), address

    enrolment, address = asyncio.run(run())
    identity = enrolment.identity
    assert (identity.id, identity.role, identity.broker) == ("lab-1", "worker", address)
    assert Identity.load(tmp_path / "home") == identity
    assert (tmp_path / "home" / "key.pem").stat().st_mode & 0o777 == 0o600


def test_the_first_of_several_addresses_that_answers_is_joined_and_all_are_kept(tmp_path: Path) -> None:
    async def run() -> tuple[Identity, str]:
        async with broker(tmp_path / "broker") as (authority, address):
            both = f"{nowhere()},{address}"
            token = authority.create_token("worker")
            return (await enrol(both, token, tmp_path / "home", "worker")).identity, both

    identity, both = asyncio.run(run())
    assert identity.broker == both and identity.broker_addresses == both.split(",")
    with pytest.raises(ConnectionFailed, match=r"refused the connection.*; .*refused the connection"):
        token = Token.create("worker", bytes(32))
        asyncio.run(enrol(f"{nowhere()},localhost:{nowhere()[10:]}", token, tmp_path / "other", "worker"))


@pytest.mark.parametrize("role", ["worker", "submitter", "viewer"])
def test_without_a_name_the_id_is_made_from_the_host(tmp_path: Path, role: TokenRole) -> None:
    async def run() -> list[Identity]:
        async with broker(tmp_path / "broker") as (authority, address):
            token = authority.create_token(role, uses=2)
            homes = tmp_path / "1", tmp_path / "2"
            return [(await enrol(address, token, home, role)).identity for home in homes]

    first, second = asyncio.run(run())
    assert first.role == second.role == role
    assert first.id != second.id
    assert first.id[:-6] == second.id[:-6]


@pytest.mark.parametrize("off_seconds", [300.0, -300.0])
def test_the_difference_of_the_clocks_is_reported(tmp_path: Path, off_seconds: float) -> None:
    async def run() -> Enrolment:
        async with broker(tmp_path / "broker", lambda: time.time() - off_seconds) as (authority, address):
            return await enrol(address, authority.create_token("worker"), tmp_path / "home", "worker")

    assert asyncio.run(run()).clock_ahead_seconds == pytest.approx(off_seconds, abs=30)


@pytest.mark.parametrize(("hours", "words"), [(49, "49 hours ahead of"), (-200, "200 hours behind")])
def test_a_clock_that_no_certificate_allows_is_named_and_no_token_spent(
    tmp_path: Path, hours: float, words: str
) -> None:
    seen: list[bytes] = []

    async def run() -> None:
        with Store(tmp_path / "broker") as store:
            authority = Authority.open(tmp_path / "broker", store)
            token = authority.create_token("worker")

            async def answer(request: bytes, remote: str) -> bytes:
                seen.append(request)
                own = certificate_to_pem(authority.certificate)
                return join_messages.encode(TellAuthority(own, time.time() - hours * HOUR))

            async with door(authority.identity().server_context(True), answer) as address:
                await enrol(address, token, tmp_path / "home", "worker")

    with pytest.raises(IdentityError, match=f"clock is {words} the broker's"):
        asyncio.run(run())
    assert [join_messages.decode_request(request) for request in seen] == [AskAuthority()]


def test_nothing_secret_goes_to_a_broker_that_did_not_make_the_token(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def run() -> None:
        with Store(tmp_path / "ours") as store, Store(tmp_path / "theirs") as other:
            token = Authority.open(tmp_path / "ours", store).create_token("worker")
            theirs = Authority.open(tmp_path / "theirs", other)

            async def answer(request: bytes, remote: str) -> bytes:
                seen.append(request)
                return theirs.answer(request, remote)

            async with door(theirs.identity().server_context(True), answer) as address:
                expected = token.fingerprint.hex()[:8]
                found = fingerprint(theirs.certificate).hex()[:8]
                message = (
                    rf"the broker at {address} did not create this token \(expected {expected}…, "
                    rf"found {found}…\), so nothing secret was sent: .* token create --role worker"
                )
                with pytest.raises(IdentityError, match=message):
                    await enrol(address, token, tmp_path / "home", "worker")

    asyncio.run(run())
    assert [join_messages.decode_request(request) for request in seen] == [AskAuthority()]


def test_an_impostor_with_the_right_authority_gets_no_secret(tmp_path: Path) -> None:
    """The authority's certificate is public: anybody may repeat it, and still lacks the broker's name."""
    seen: list[bytes] = []

    async def run() -> None:
        with Store(tmp_path / "ours") as store, Store(tmp_path / "theirs") as other:
            ours = Authority.open(tmp_path / "ours", store)
            token = ours.create_token("worker", uses=2)
            theirs = Authority.open(tmp_path / "theirs", other)
            worker = await _worker(ours, token, tmp_path / "worker")

            async def answer(request: bytes, remote: str) -> bytes:
                seen.append(request)
                return ours.answer(request, remote)

            for impostor in (theirs.identity(), worker):
                async with door(impostor.server_context(True), answer) as address:
                    with pytest.raises(ConnectionFailed):
                        await enrol(address, token, tmp_path / "home", "worker")

    asyncio.run(run())
    assert [join_messages.decode_request(request) for request in seen] == [AskAuthority()] * 2


def test_a_refusal_contains_the_brokers_reason(tmp_path: Path) -> None:
    now = [time.time()]

    async def run() -> None:
        async with broker(tmp_path / "broker", lambda: now[0]) as (authority, address):
            used, expired = authority.create_token("worker"), authority.create_token("worker", hours=1)
            fresh, viewer = authority.create_token("worker"), authority.create_token("viewer")
            unknown = Token.create("worker", used.fingerprint)
            claimed = Token("worker", viewer.fingerprint, viewer.secret)
            await enrol(address, used, tmp_path / "0", "worker", "lab-1")
            now[0] += 2 * HOUR
            for token, name, message in [
                (used, "lab-2", "the token is used up (1 of 1 uses)"),
                (expired, "lab-2", "the token expired 1.0 hours ago"),
                (unknown, "lab-2", "this broker does not know the token"),
                (claimed, "lab-2", "the token is for a viewer, not for a worker"),
                (fresh, "lab-1", "the id 'lab-1' is taken by another key: choose another with --name"),
                (fresh, "broker", "the id 'broker' is the broker's own: choose another with --name"),
            ]:
                with pytest.raises(IdentityError) as caught:
                    await enrol(address, token, tmp_path / "1", "worker", name)
                assert str(caught.value).startswith(f"the broker at {address} refused: {message}")
                assert "\n" not in str(caught.value)
            await enrol(address, fresh, tmp_path / "1", "worker", "lab-2")

    asyncio.run(run())


def test_a_role_or_name_that_cannot_be_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    token = Token.create("viewer", bytes(32))
    nowhere = "127.0.0.1:1"
    with pytest.raises(IdentityError, match="the token is for a viewer, not for a worker"):
        asyncio.run(enrol(nowhere, token, tmp_path / "home", "worker"))
    with pytest.raises(IdentityError, match="'Lab 1' cannot be an id"):
        asyncio.run(enrol(nowhere, token, tmp_path / "home", "viewer", "Lab 1"))
    with pytest.raises(ConnectionFailed):
        asyncio.run(enrol(nowhere, token, tmp_path / "home", "viewer"))


def test_one_use_is_won_by_one_of_two_joins_at_once(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with broker(tmp_path / "broker") as (authority, address):
            token = authority.create_token("worker")
            joins = [enrol(address, token, tmp_path / str(number), "worker") for number in range(4)]
            return await asyncio.gather(*joins, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert sum(isinstance(outcome, Enrolment) for outcome in outcomes) == 1
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(failure, IdentityError) and "used up" in str(failure) for failure in failures)


def test_a_join_whose_answer_was_lost_is_repeated_with_the_same_token(tmp_path: Path) -> None:
    async def run() -> tuple[Identity, bytes]:
        async with broker(tmp_path / "broker") as (authority, address):
            token = authority.create_token("worker")

            async def answer(request: bytes, remote: str) -> bytes:
                reply = authority.answer(request, remote)
                if isinstance(join_messages.decode_request(request), AskCertificate):
                    raise ConnectionResetError("the line went dead")
                return reply

            async with door(authority.identity().server_context(True), answer) as flaky:
                with pytest.raises(FarflungError):
                    await enrol(flaky, token, tmp_path / "home", "worker")
            before = public_bytes(key_in(tmp_path / "home").public_key())
            return (await enrol(address, token, tmp_path / "home", "worker")).identity, before

    identity, key = asyncio.run(run())
    assert Identity.load(tmp_path / "home") == identity
    assert public_bytes(identity.certificate.public_key()) == key


def test_a_broker_that_talks_nonsense_is_refused(tmp_path: Path) -> None:
    async def run(reply: bytes) -> None:
        with Store(tmp_path / "broker") as store:
            authority = Authority.open(tmp_path / "broker", store)

            async def answer(request: bytes, remote: str) -> bytes:
                return reply

            async with door(authority.identity().server_context(True), answer) as address:
                await enrol(address, authority.create_token("worker"), tmp_path / "home", "worker")

    for reply in (
        b"",
        b"garbage",
        join_messages.encode(AskAuthority()),
        join_messages.encode(TellAuthority(b"no certificate", 0.0)),
        join_messages.encode(join_messages.TellCertificate(b"", 0.0)),
        join_messages.encode(join_messages.Refuse("closed today")),
    ):
        with pytest.raises(FarflungError):
            asyncio.run(run(reply))


def _admit_nobody(link: Link) -> Handler:
    raise ProtocolError("only strangers are expected here")


async def _worker(authority: Authority, token: Token, folder: Path) -> Identity:
    async with door(authority.identity().server_context(True), authority.on_joiner) as address:
        return (await enrol(address, token, folder, "worker")).identity
