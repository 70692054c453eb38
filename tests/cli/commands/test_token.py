"""`farflung token`: what it says beside a new one, which there are, and how one is taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store, TokenRecord
from farflung.cli.main import run
from farflung.errors import IdentityError
from farflung.transport.net.address_file import write_address
from farflung.transport.security.certificates import new_key, signing_request
from farflung.transport.security.join_messages import AskCertificate
from farflung.transport.security.tokens import Token


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a broker on a machine that has these addresses."""
    hosts = ["127.0.0.1", "::1", "2001:db8::7", "192.0.2.7", "fe80::1%eth0", "10.1.2.3"]
    monkeypatch.setattr("farflung.connectivity.advertised.own_hosts", lambda: hosts)
    return tmp_path / "broker"


def create(folder: Path, *arguments: str) -> None:
    assert run(["token", "create", "--folder", str(folder), *arguments]) == 0


def test_a_token_comes_with_the_command_and_the_address_of_the_broker(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(folder, "--role", "worker")
    before = capsys.readouterr()
    assert "farflung join HOST:PORT --token TOKEN" in before.err and "no broker has run" in before.err
    write_address(folder, "[::]:7711")
    create(folder, "--role", "worker", "--uses", "2")
    printed = capsys.readouterr()
    first, kept, second = printed.err.splitlines()
    assert first == "valid for 2 uses within 24 h: farflung join 192.0.2.7:7711 --token TOKEN"
    assert kept == "what joins with it keeps its identity while it is in use, and comes back within 7 days"
    assert "10.1.2.3:7711, [2001:db8::7]:7711" in second
    assert printed.out.startswith("ff1-") and printed.out.count("\n") == 1


def test_a_broker_on_one_address_is_dialled_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(folder, "--role", "viewer")
    write_address(folder, "127.0.0.1:45123")
    capsys.readouterr()
    create(folder, "--role", "submitter", "--json")
    assert json.loads(capsys.readouterr().out)["broker"] == ["127.0.0.1:45123"]


def joined(folder: Path, token: str, id: str) -> None:
    """Let somebody in with a token, as the broker does."""
    parsed = Token.parse(token)
    key = new_key()
    request = AskCertificate(parsed.secret, id, parsed.role, signing_request(key, id, parsed.role))
    with Store(folder, sole=False) as store:
        Authority.open(folder, store).enrol(request)


def tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["token", "list", "--folder", str(folder), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["tokens"]
    return found


def test_a_token_for_viewers_of_some_jobs_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(folder, "--role", "viewer", "--jobs", "gpt", "--jobs", "tuning")
    create(folder, "--role", "viewer", "--hours", "1")
    everything, some = tokens(folder, capsys)
    assert (everything["jobs"], some["jobs"]) == (None, ["gpt", "tuning"])
    assert run(["token", "list", "--folder", str(folder)]) == 0
    assert "viewer of gpt, tuning" in capsys.readouterr().out
    assert run(["token", "create", "--role", "worker", "--jobs", "gpt", "--folder", str(folder)]) == 2
    assert "--jobs limits what a viewer sees, and the token is for a worker" in capsys.readouterr().err


def test_tokens_are_listed_without_their_secrets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(folder, "--role", "worker", "--uses", "3")
    secret = capsys.readouterr().out.strip()
    create(folder, "--role", "viewer", "--hours", "1")
    joined(folder, secret, "desk")
    joined(folder, secret, "attic")
    viewer, worker = tokens(folder, capsys)  # the one that ends first in front
    assert (viewer["role"], viewer["state"], viewer["used"], viewer["joined"]) == ("viewer", "good", 0, [])
    assert viewer["expires_at"] - viewer["made_at"] == pytest.approx(3600)
    assert (worker["uses"], worker["used"], worker["joined"]) == (3, 2, ["attic", "desk"])
    assert run(["token", "list", "--folder", str(folder)]) == 0
    shown = capsys.readouterr().out
    row = next(line.split() for line in shown.splitlines() if "worker" in line)
    assert row[:6] == [worker["id"], "worker", "good", "1", "of", "3"] and row[-2:] == ["attic,", "desk"]
    assert secret not in shown and Token.parse(secret).secret.hex() not in shown
    joined(folder, secret, "lab")
    with Store(folder, sole=False) as store:
        store.add_token(TokenRecord(b"\1" * 32, "submitter", 1, 0, expires_at=5.0))  # of an older farflung
    old, _, spent = tokens(folder, capsys)
    assert (old["state"], old["made_at"], spent["state"]) == ("expired", None, "used up")


def test_a_revoked_token_lets_nobody_else_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(folder, "--role", "worker", "--uses", "9")
    secret = capsys.readouterr().out.strip()
    create(folder, "--role", "viewer")
    joined(folder, secret, "desk")
    (id,) = (token["id"] for token in tokens(folder, capsys) if token["role"] == "worker")
    assert run(["token", "revoke", id, "--folder", str(folder)]) == 0
    told = capsys.readouterr().err
    assert f"token {id} for a worker is revoked, with 8 uses left; desk joined with it and can" in told
    with pytest.raises(IdentityError, match="does not know the token"):
        joined(folder, secret, "attic")
    assert [token["role"] for token in tokens(folder, capsys)] == ["viewer"]
    for unknown in (id, "", "zz"):
        assert run(["token", "revoke", unknown, "--folder", str(folder)]) == 2
        assert f"error: no token has the id '{unknown}': farflung token list" in capsys.readouterr().err


def test_a_folder_without_a_broker_has_no_tokens_and_gets_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["list"], ["revoke", "ab"]):
        assert run(["token", *command, "--folder", str(folder)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {folder} has no broker")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("listening", "hosts", "expected"),
    [
        ("[::]:7700", ["127.0.0.1", "::1"], ["127.0.0.1:7700"]),
        ("0.0.0.0:7700", ["2001:db8::7", "192.0.2.7", "192.0.2.7"], ["192.0.2.7:7700"]),
        ("192.0.2.7:1", ["10.0.0.1"], ["192.0.2.7:1"]),
    ],
)
def test_where_others_dial(listening: str, hosts: list[str], expected: list[str]) -> None:
    from farflung.connectivity.advertised import dialled_at

    assert dialled_at(listening, hosts) == expected
