"""What `farflung token create` says beside the token: the command that the newcomer runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farflung.broker.listening import keep_address
from farflung.cli.main import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a broker on a machine that has these addresses."""
    hosts = ["127.0.0.1", "::1", "2001:db8::7", "192.0.2.7", "fe80::1%eth0", "10.1.2.3"]
    monkeypatch.setattr("farflung.paths.advertised.own_hosts", lambda: hosts)
    return tmp_path / "broker"


def create(folder: Path, *arguments: str) -> None:
    assert run(["token", "create", "--folder", str(folder), *arguments]) == 0


def test_a_token_comes_with_the_command_and_the_address_of_the_broker(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(folder, "--role", "worker")
    before = capsys.readouterr()
    assert "farflung join HOST:PORT --token TOKEN" in before.err and "none has run" in before.err
    keep_address(folder, "[::]:7711")
    create(folder, "--role", "worker", "--uses", "2")
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first == "good for 2 uses within 24 h: farflung join 192.0.2.7:7711 --token TOKEN"
    assert "10.1.2.3:7711, [2001:db8::7]:7711" in second
    assert printed.out.startswith("ff1-") and printed.out.count("\n") == 1


def test_a_broker_on_one_address_is_dialled_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(folder, "--role", "viewer")
    keep_address(folder, "127.0.0.1:45123")
    capsys.readouterr()
    create(folder, "--role", "submitter", "--json")
    assert json.loads(capsys.readouterr().out)["broker"] == ["127.0.0.1:45123"]


@pytest.mark.parametrize(
    ("listening", "hosts", "expected"),
    [
        ("[::]:7700", ["127.0.0.1", "::1"], ["127.0.0.1:7700"]),
        ("0.0.0.0:7700", ["2001:db8::7", "192.0.2.7", "192.0.2.7"], ["192.0.2.7:7700"]),
        ("192.0.2.7:1", ["10.0.0.1"], ["192.0.2.7:1"]),
    ],
)
def test_where_others_dial(listening: str, hosts: list[str], expected: list[str]) -> None:
    from farflung.paths.advertised import dialled_at

    assert dialled_at(listening, hosts) == expected
