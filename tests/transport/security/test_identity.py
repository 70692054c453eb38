from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farflung.broker.security.authority import Authority
from farflung.broker.storage.store import Store
from farflung.errors import IdentityError
from farflung.transport.security.certificates import (
    ALPN,
    LIFETIME_SECONDS,
    certificate_to_pem,
    client_context,
    key_to_pem,
    new_key,
    signing_request,
    unverified_context,
)
from farflung.transport.security.identity import BROKER_NAME, Identity, key_in
from farflung.transport.security.join_messages import AskCertificate
from farflung.transport.security.names import Role

DAY = 24 * 3600.0


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    with Store(tmp_path / "broker") as store:
        yield Authority.open(tmp_path / "broker", store)


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Authority]:
    with Store(tmp_path / "foreign-broker") as store:
        yield Authority.open(tmp_path / "foreign-broker", store)


def join(authority: Authority, folder: Path, id: str, role: Role = "worker", age: float = 0.0) -> Identity:
    """An identity as `enrol` would leave it, issued `age` seconds ago."""
    assert role != "broker"
    then = time.time() - age
    early = Authority(authority.folder, authority.store, authority.certificate, authority.key, lambda: then)
    token = early.create_token(role)
    request = signing_request(key_in(folder), id, role)
    certificate = early.enrol(AskCertificate(token.secret, id, role, request))
    return Identity.write(
        folder, certificate, certificate_to_pem(authority.certificate), "broker.example:7700"
    )


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None) -> dict[str, object] | None:
    """One TLS connection over loopback that carries a byte each way: gives back whom the server saw.

    Raises what the client met, which in TLS 1.3 includes the server's refusal of its certificate.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[dict[str, object] | None] = []

    def serve() -> None:
        raw, _ = listener.accept()
        try:
            with server.wrap_socket(raw, server_side=True) as connection:
                seen.append(connection.getpeercert())
                connection.recv(1)
                connection.send(b"y")
        except (ssl.SSLError, OSError):
            raw.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        raw = socket.create_connection(listener.getsockname())
        with raw, client.wrap_socket(raw, server_hostname=name) as connection:
            connection.send(b"x")
            assert connection.recv(1) == b"y"
            assert connection.version() == "TLSv1.3"
            assert connection.selected_alpn_protocol() == ALPN
            return seen[0]
    finally:
        thread.join()
        listener.close()


def test_an_identity_comes_back_from_its_folder_and_its_key_is_private(
    authority: Authority, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "worker"
    written = join(authority, folder, "lab-1")
    assert Identity.load(folder) == written
    assert (written.id, written.role, written.broker) == ("lab-1", "worker", "broker.example:7700")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == [
        "authority.pem",
        "certificate.pem",
        "identity.json",
        "key.pem",
    ]


def test_two_holders_of_one_broker_know_each_other_by_name(authority: Authority, tmp_path: Path) -> None:
    first, second = join(authority, tmp_path / "1", "lab-1"), join(authority, tmp_path / "2", "lab-2")
    seen = handshake(first.client_context(), second.server_context(False), "lab-2.worker.farflung.internal")
    assert seen is not None
    assert seen["subjectAltName"] == (("DNS", "lab-1.worker.farflung.internal"),)


def test_the_broker_is_known_by_its_name(authority: Authority, tmp_path: Path) -> None:
    holder = join(authority, tmp_path / "1", "alice", "submitter")
    seen = handshake(holder.client_context(), authority.identity().server_context(True), BROKER_NAME)
    assert seen is not None


@pytest.mark.parametrize(
    "name", ["lab-1.worker.farflung.internal", "lab-2.submitter.farflung.internal", "lab-2", BROKER_NAME]
)
def test_a_holder_is_not_taken_for_another(authority: Authority, tmp_path: Path, name: str) -> None:
    first, second = join(authority, tmp_path / "1", "lab-1"), join(authority, tmp_path / "2", "lab-2")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(first.client_context(), second.server_context(False), name)


def test_holders_of_another_authority_are_refused_by_both_sides(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    ours, theirs = join(authority, tmp_path / "1", "lab-1"), join(foreign, tmp_path / "2", "lab-1")
    name = "lab-1.worker.farflung.internal"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ours.client_context(), theirs.server_context(False), name)
    certificate, key = tmp_path / "2" / "certificate.pem", tmp_path / "2" / "key.pem"
    intruder = client_context(certificate_to_pem(authority.certificate), certificate, key)
    for admit_joiners in (False, True):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(intruder, ours.server_context(admit_joiners), name)


def test_only_a_port_that_admits_joiners_accepts_a_peer_without_a_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    holder = join(authority, tmp_path / "1", "lab-1")
    stranger = client_context(certificate_to_pem(authority.certificate))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(stranger, holder.server_context(False), "lab-1.worker.farflung.internal")
    for context in (stranger, unverified_context()):
        seen = handshake(context, authority.identity().server_context(True), BROKER_NAME)
        assert not seen


def test_older_tls_is_refused(authority: Authority, tmp_path: Path) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(old, authority.identity().server_context(True), None)


def test_an_ended_certificate_is_refused_at_once_and_by_peers(authority: Authority, tmp_path: Path) -> None:
    ended = join(authority, tmp_path / "1", "lab-1", age=8 * DAY)
    with pytest.raises(
        IdentityError, match=r"certificate of lab-1 expired at .* farflung token create --role worker"
    ):
        Identity.load(tmp_path / "1")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(ended.client_context(), authority.identity().server_context(True), BROKER_NAME)


def test_renewal_is_due_at_half_life(authority: Authority, tmp_path: Path) -> None:
    identity = join(authority, tmp_path / "1", "lab-1")
    assert not identity.needs_renewal(time.time())
    assert not identity.needs_renewal(time.time() + LIFETIME_SECONDS / 2 - 60)
    assert identity.needs_renewal(time.time() + LIFETIME_SECONDS / 2 + 60)


def test_a_renewed_identity_is_kept_and_shown_on_new_connections(
    authority: Authority, tmp_path: Path
) -> None:
    old = join(authority, tmp_path / "1", "lab-1", age=5 * DAY)
    in_use = old.client_context()
    new = old.renewed(authority.renew("lab-1", "worker", old.renewal_request()))
    assert not new.needs_renewal(time.time())
    assert Identity.load(tmp_path / "1") == new
    new.present_in(in_use)
    seen = handshake(in_use, authority.identity().server_context(True), BROKER_NAME)
    assert seen is not None
    assert int(str(seen["serialNumber"]), 16) == new.certificate.serial_number


def test_a_renewal_with_a_foreign_certificate_is_refused_and_the_old_one_stays(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    identity, other = join(authority, tmp_path / "1", "lab-1"), join(authority, tmp_path / "2", "lab-2")
    stray = join(foreign, tmp_path / "3", "lab-1")
    for wrong, expected in [
        (certificate_to_pem(other.certificate), "is for another key"),
        (certificate_to_pem(stray.certificate), "was not issued by the authority"),
        (b"garbage", "expected a certificate"),
    ]:
        with pytest.raises(IdentityError, match=expected):
            identity.renewed(wrong)
    assert Identity.load(tmp_path / "1") == identity


def test_a_folder_whose_parts_do_not_match_says_so(
    authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    folder = tmp_path / "1"
    join(authority, folder, "lab-1")
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, wrong, expected in [
        ("certificate.pem", b"", "certificate.pem is damaged"),
        ("authority.pem", certificate_to_pem(foreign.certificate), "was not issued by the authority"),
        ("key.pem", key_to_pem(new_key()), "is for another key"),
        ("key.pem", b"secret", "expected a private key"),
        (
            "identity.json",
            b'{"id": "lab-2", "role": "worker", "broker": ""}',
            "names lab-1.worker, not lab-2.worker",
        ),
        ("identity.json", b'{"id": "lab-1", "role": "root", "broker": ""}', "identity.json is damaged"),
        ("identity.json", b"\xff\xfe", "identity.json is damaged"),
        ("identity.json", b'{"id": "../x", "role": "worker", "broker": ""}', "cannot be an id"),
    ]:
        (folder / name).write_bytes(wrong)
        with pytest.raises(IdentityError, match=expected) as caught:
            Identity.load(folder)
        assert "secret" not in str(caught.value)
        (folder / name).write_bytes(good[name])
    assert Identity.load(folder).id == "lab-1"


@pytest.mark.parametrize("name", ["key.pem", "certificate.pem", "authority.pem", "identity.json"])
def test_a_missing_part_says_to_join(authority: Authority, tmp_path: Path, name: str) -> None:
    join(authority, tmp_path / "1", "lab-1")
    (tmp_path / "1" / name).unlink()
    with pytest.raises(IdentityError, match=f"{name} is missing.*--token"):
        Identity.load(tmp_path / "1")


def test_a_key_that_others_may_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    join(authority, tmp_path / "1", "lab-1")
    for mode in (0o640, 0o604, 0o620):
        (tmp_path / "1" / "key.pem").chmod(mode)
        with pytest.raises(IdentityError, match=f"others may read .*mode {mode:04o}.*chmod 600"):
            Identity.load(tmp_path / "1")


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IdentityError, match="cannot hold an identity"):
        key_in(tmp_path / "file" / "worker")
