"""Who runs a command: a kept identity is not renamed, and a token finds the broker that its user knows."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.broker_fleet import broker

from farflung.broker.security.authority import create_token
from farflung.broker.security.tokens import known_tokens
from farflung.broker.service import BrokerService
from farflung.cli.commands.status import any_identity
from farflung.cli.process.identity import obtain_identity
from farflung.client.run import broker_client
from farflung.client.run.broker_client import ask_status
from farflung.errors import AnotherAuthority, ConnectionFailed, IdentityError
from farflung.transport.security.identity import Identity, Record
from farflung.transport.security.tokens import TokenRole
from farflung.transport.timeouts import Timeouts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all identities of the user."""
    monkeypatch.setenv("FARFLUNG_HOME", str(tmp_path))
    return tmp_path


def beside_a_broker(home: Path, scene: Callable[[BrokerService], Awaitable[None]]) -> None:
    async def play() -> None:
        async with broker(home / "broker") as service:
            await scene(service)

    asyncio.run(play())


async def obtain(home: Path, role: TokenRole, broker: str | None, name: str | None = None) -> Identity:
    """With a new token of the broker."""
    token = await asyncio.to_thread(create_token, home / "broker", role)
    return await obtain_identity(home / role, role, broker, token.text, name)


def test_a_kept_identity_is_not_renamed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(service: BrokerService) -> None:
        assert (await obtain(home, "worker", service.address, "one")).id == "one"
        assert "was not needed" not in capsys.readouterr().err
        for name in ("one", None):
            assert (await obtain(home, "worker", service.address, name)).id == "one"
            said = capsys.readouterr().err
            assert (
                f"the token was not needed: {home / 'worker'} already has the identity of worker one" in said
            )
        with pytest.raises(IdentityError, match=r"has the identity of one, but --name is three: .* --folder"):
            await obtain(home, "worker", service.address, "three")
        with pytest.raises(IdentityError, match="--name is three"):
            await obtain_identity(home / "worker", "worker", service.address, None, "three")

    beside_a_broker(home, scene)


def test_a_token_of_a_broker_on_this_machine_needs_no_address(home: Path) -> None:
    async def scene(service: BrokerService) -> None:
        viewer = await obtain(home, "viewer", None)
        assert viewer.broker == service.address

    beside_a_broker(home, scene)


def test_a_token_of_a_broker_that_this_user_has_joined_needs_no_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(service: BrokerService) -> None:
        elsewhere = home / "elsewhere"
        monkeypatch.setenv("FARFLUNG_HOME", str(elsewhere))  # where no broker is
        joins: list[tuple[TokenRole, str | None]] = [("viewer", service.address), ("submitter", None)]
        for role, address in joins:
            token = await asyncio.to_thread(create_token, home / "broker", role)
            joined = await obtain_identity(elsewhere / role, role, address, token.text)
            assert joined.broker == service.address

    beside_a_broker(home, scene)


@pytest.mark.parametrize("named", [False, True])
def test_who_has_the_brokers_folder_needs_no_token(
    home: Path, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "broker" if named else None

    async def scene(service: BrokerService) -> None:
        first = await any_identity(None, None, folder)
        assert (first.role, first.broker) == ("viewer", service.address)
        assert (await ask_status(first)).workers == []
        assert "joined the broker" in capsys.readouterr().err
        assert (await any_identity(None, None, folder)).id == first.id and not capsys.readouterr().err
        (token,) = known_tokens(home / "broker")
        assert (token.role, token.uses, token.used) == ("viewer", 1, 1)

    beside_a_broker(home, scene)


def test_who_has_no_broker_is_told_of_tokens(home: Path) -> None:
    with pytest.raises(IdentityError, match="token create --role viewer"):
        asyncio.run(any_identity(None, None, None))
    create_token(home / "broker", "worker")  # makes the authority, but no broker has run
    with pytest.raises(IdentityError, match=r"no broker has run on .* yet: start it with farflung broker"):
        asyncio.run(any_identity(None, None, None))


def test_a_token_of_an_unknown_broker_asks_for_its_address(home: Path, tmp_path: Path) -> None:
    async def scene(service: BrokerService) -> None:
        token = await asyncio.to_thread(create_token, tmp_path / "other", "viewer")
        with pytest.raises(IdentityError, match="add --broker HOST:PORT"):
            await obtain_identity(home / "viewer", "viewer", None, token.text)

    beside_a_broker(home, scene)


def test_a_token_of_another_broker_says_whose_identity_it_replaces(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene(service: BrokerService) -> None:
        first = await obtain(home, "worker", service.address, "one")
        capsys.readouterr()
        async with broker(tmp_path / "other") as other:
            token = await asyncio.to_thread(create_token, tmp_path / "other", "worker")
            second = await obtain_identity(home / "worker", "worker", other.address, token.text, "two")
        said = capsys.readouterr().err
        told = f"replaced the identity that {home / 'worker'} had: worker one at {first.broker}; "
        assert said.count("replaced") == 1 and told in said and "--folder" in said
        assert Identity.load(home / "worker").id == second.id == "two"

    beside_a_broker(home, scene)


def test_a_token_of_another_broker_takes_no_identity_from_a_worker_that_runs(
    home: Path, tmp_path: Path
) -> None:
    async def scene(service: BrokerService) -> None:
        await obtain(home, "worker", service.address, "one")
        worker = await asyncio.to_thread(holding, home / "worker")
        async with broker(tmp_path / "other") as other:
            token = await asyncio.to_thread(create_token, tmp_path / "other", "worker")
            taken = obtain_identity(home / "worker", "worker", other.address, token.text, "two")
            with pytest.raises(
                IdentityError, match=rf"a running worker \(process {worker.pid}\) uses: .* --folder"
            ):
                await taken
            assert Identity.load(home / "worker").id == "one"
            assert (await obtain(home, "worker", service.address)).id == "one"
            await asyncio.to_thread(worker.communicate)
            again = obtain_identity(home / "worker", "worker", other.address, token.text, "two")
            assert (await again).id == "two"  # the token was not spent

    beside_a_broker(home, scene)


def holding(folder: Path) -> subprocess.Popen[bytes]:
    """A process that runs on a folder until its input ends."""
    argv = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


HOLDER = """
import pathlib, sys
from farflung.transport.security.identity_folder import hold_folder
hold_folder(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_port_that_was_left_out_is_said_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = create_token(home / "broker", "worker").text
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:7700"):
        asyncio.run(obtain_identity(home / "worker", "worker", "127.0.0.1", token))
    assert capsys.readouterr().err == "dialling the broker at 127.0.0.1:7700\n"

    async def scene(service: BrokerService) -> None:
        await obtain(home, "worker", service.address)
        kept = await obtain_identity(home / "worker", "worker", "127.0.0.1", None)
        assert kept.broker == "127.0.0.1:7700"
        with pytest.raises(ConnectionFailed, match="expected HOST:PORT"):
            await obtain_identity(home / "worker", "worker", "127.0.0.1:port", None)

    beside_a_broker(home, scene)


def test_an_identity_of_another_broker_is_told_whose_it_is(home: Path, tmp_path: Path) -> None:
    async def scene(service: BrokerService) -> None:
        viewer = await obtain(home, "viewer", service.address, "ann")
        async with broker(tmp_path / "other") as other:
            moved = await obtain_identity(home / "viewer", "viewer", other.address, None)
            with pytest.raises(AnotherAuthority) as refused:
                await ask_status(moved)
            with pytest.raises(AnotherAuthority, match="belongs to another broker, the one at"):
                await broker_client.open_broker_session(moved, Timeouts(), lambda message: None)
        assert str(refused.value) == (
            f"the broker at {other.address} does not know the identity in {home / 'viewer'}: viewer ann"
            f" belongs to another broker, the one at {viewer.broker}; create a token on this broker's machine"
            " (farflung token create --role viewer) and add --token, with a separate --folder to keep both"
        )

    beside_a_broker(home, scene)


def test_an_identity_of_a_broker_that_was_made_anew_says_so(home: Path) -> None:
    async def before(service: BrokerService) -> None:
        await obtain(home, "viewer", service.address, "ann")

    async def after(service: BrokerService) -> None:
        shown = replace(Identity.load(home / "viewer"), broker=service.address)
        record = Record(shown.id, shown.role, shown.broker)
        (home / "viewer" / "identity.json").write_bytes(msgspec.json.encode(record))
        with pytest.raises(AnotherAuthority, match="another broker, one that was there before; create"):
            await ask_status(shown)

    beside_a_broker(home, before)
    shutil.rmtree(home / "broker")
    beside_a_broker(home, after)
