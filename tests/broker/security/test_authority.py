from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.security.authority import Authority, create_token
from farflung.broker.security.authority_key import AUTHORITY_KEY_FILE
from farflung.broker.storage.store import Store
from farflung.errors import IdentityError
from farflung.transport.security import join_messages
from farflung.transport.security.certificates import (
    LIFETIME_SECONDS,
    RENEWABLE_SECONDS,
    certificate_from_pem,
    fingerprint,
    new_key,
    public_bytes,
    read_holder,
    signing_request,
)
from farflung.transport.security.join_messages import (
    AskAuthority,
    AskCertificate,
    AskRenewal,
    Refuse,
    TellAuthority,
    TellCertificate,
)
from farflung.transport.security.tokens import Token, TokenRole

HOUR = 3600.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    with Store(tmp_path / "broker") as store:
        yield Authority.open(tmp_path / "broker", store, clock)


def asking(
    token: Token, id: str, key: ec.EllipticCurvePrivateKey, role: TokenRole = "worker"
) -> AskCertificate:
    return AskCertificate(token.secret, id, role, signing_request(key, id, role))


def uses_left(authority: Authority, token: Token) -> int:
    record = authority.store.token(token.digest)
    assert record is not None
    return record.uses - record.used


def test_a_token_is_spent_for_a_certificate_with_everything_strict_checks_want(
    authority: Authority, clock: Clock
) -> None:
    key = new_key()
    certificate = certificate_from_pem(
        authority.enrol(asking(authority.create_token("worker"), "lab-1", key))
    )
    assert read_holder(certificate) == ("lab-1", "worker")
    assert public_bytes(certificate.public_key()) == public_bytes(key.public_key())
    assert certificate.not_valid_before_utc.timestamp() == clock.now - 24 * HOUR
    assert certificate.not_valid_after_utc.timestamp() == clock.now + 24 * HOUR
    extensions = certificate.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical and not constraints.value.ca
    assert extensions.get_extension_for_class(x509.KeyUsage).critical
    own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert issuer.key_identifier == own.digest
    certificate.verify_directly_issued_by(authority.certificate)


def test_the_authority_comes_back_with_its_folder_and_its_key_is_private(tmp_path: Path) -> None:
    prints = []
    for _ in range(2):
        with Store(tmp_path) as store:
            prints.append(fingerprint(Authority.open(tmp_path, store).certificate))
    assert prints[0] == prints[1]
    assert (tmp_path / AUTHORITY_KEY_FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / AUTHORITY_KEY_FILE).chmod(0o644)
    with Store(tmp_path) as store, pytest.raises(IdentityError, match="chmod 600"):
        Authority.open(tmp_path, store)


def test_tokens_are_made_before_and_beside_a_running_broker(tmp_path: Path) -> None:
    before = create_token(tmp_path, "worker")
    with Store(tmp_path) as store:
        authority = Authority.open(tmp_path, store)
        beside = create_token(tmp_path, "submitter", uses=3, hours=1)
        assert before.fingerprint == beside.fingerprint == fingerprint(authority.certificate)
        authority.enrol(asking(before, "lab-1", new_key()))
        authority.enrol(asking(beside, "alice", new_key(), "submitter"))


def test_two_processes_that_come_first_agree_on_one_authority(tmp_path: Path) -> None:
    tokens: list[Token] = []
    threads = [
        threading.Thread(target=lambda: tokens.append(create_token(tmp_path / "new", "worker")))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 6
    assert len({token.fingerprint for token in tokens}) == 1


def test_the_secret_is_nowhere_in_the_folder(authority: Authority) -> None:
    token = authority.create_token("worker")
    authority.enrol(asking(token, "lab-1", new_key()))
    for path in authority.folder.iterdir():
        assert token.secret not in path.read_bytes(), path


def test_an_expired_token(authority: Authority, clock: Clock) -> None:
    token = authority.create_token("worker", hours=2)
    clock.now += 2 * HOUR - 1
    authority.enrol(asking(token, "lab-1", key := new_key()))
    clock.now += 1.5 * HOUR + 1
    with pytest.raises(IdentityError, match=r"expired 1\.5 hours ago: create another"):
        authority.enrol(asking(token, "lab-1", key))


def test_a_used_up_token(authority: Authority) -> None:
    token = authority.create_token("worker", uses=2)
    authority.enrol(asking(token, "lab-1", new_key()))
    authority.enrol(asking(token, "lab-2", new_key()))
    with pytest.raises(IdentityError, match=r"used up \(2 of 2 uses\): create another"):
        authority.enrol(asking(token, "lab-3", new_key()))
    assert authority.store.holder("lab-3") is None


def test_a_token_of_another_role(authority: Authority) -> None:
    token = authority.create_token("viewer")
    with pytest.raises(IdentityError, match="is for a viewer, not for a worker"):
        authority.enrol(asking(token, "lab-1", new_key()))
    assert uses_left(authority, token) == 1


def test_an_unknown_token_learns_nothing_about_who_is_here(authority: Authority) -> None:
    authority.enrol(asking(authority.create_token("worker"), "lab-1", new_key()))
    foreign = Token.create("worker", bytes(32))
    for id in ("lab-1", "lab-2"):
        with pytest.raises(IdentityError, match="this broker does not know the token"):
            authority.enrol(asking(foreign, id, new_key()))


def test_one_use_is_won_by_one_of_many_at_once(authority: Authority) -> None:
    token = authority.create_token("worker")
    outcomes: list[object] = []
    barrier = threading.Barrier(8)

    def join(number: int) -> None:
        request = join_messages.encode(asking(token, f"lab-{number}", new_key()))
        barrier.wait()
        outcomes.append(join_messages.decode_answer(authority.answer(request, "here")))

    threads = [threading.Thread(target=join, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, TellCertificate) for outcome in outcomes) == 1
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refuse)]
    assert len(refusals) == 7
    assert all("used up (1 of 1 uses)" in refusal.reason for refusal in refusals)
    assert sum(authority.store.holder(f"lab-{number}") is not None for number in range(8)) == 1


def test_an_id_belongs_to_the_key_and_role_that_took_it(authority: Authority) -> None:
    key = new_key()
    authority.enrol(asking(authority.create_token("worker"), "lab-1", key))
    fresh = authority.create_token("worker")
    with pytest.raises(IdentityError, match="'lab-1' is taken by another key: choose another with --name"):
        authority.enrol(asking(fresh, "lab-1", new_key()))
    assert uses_left(authority, fresh) == 1
    with pytest.raises(IdentityError, match="'lab-1' belongs to a worker"):
        authority.enrol(asking(authority.create_token("viewer"), "lab-1", key, "viewer"))
    authority.enrol(asking(fresh, "lab-1", key))
    assert uses_left(authority, fresh) == 0


def test_an_interrupted_join_is_repeated_without_spending_more(authority: Authority) -> None:
    token = authority.create_token("worker")
    request = asking(token, "lab-1", new_key())
    first, second = authority.enrol(request), authority.enrol(request)
    assert read_holder(certificate_from_pem(first)) == read_holder(certificate_from_pem(second))
    with pytest.raises(IdentityError, match="used up"):
        authority.enrol(asking(token, "lab-2", new_key()))


def test_nobody_else_is_called_broker(authority: Authority) -> None:
    token = authority.create_token("worker")
    with pytest.raises(IdentityError, match="the id 'broker' is the broker's own"):
        authority.enrol(asking(token, "broker", new_key()))
    assert uses_left(authority, token) == 1


def test_a_request_that_names_somebody_else_or_proves_no_key(authority: Authority) -> None:
    token, key = authority.create_token("worker"), new_key()
    other = AskCertificate(token.secret, "lab-1", "worker", signing_request(key, "lab-2", "worker"))
    with pytest.raises(IdentityError, match="for lab-1 as worker, found one for lab-2 as worker"):
        authority.enrol(other)
    role = AskCertificate(token.secret, "lab-1", "worker", signing_request(key, "lab-1", "submitter"))
    with pytest.raises(IdentityError, match="found one for lab-1 as submitter"):
        authority.enrol(role)
    assert uses_left(authority, token) == 1


def test_hostile_certificate_requests(authority: Authority) -> None:
    token, key = authority.create_token("worker"), new_key()
    big = rsa.generate_private_key(65537, 2048)
    names = [x509.DNSName("lab-1.worker.farflung.internal"), x509.DNSName("lab-2.worker.farflung.internal")]
    for request, expected in [
        (b"", "expected a certificate request"),
        (
            b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
            "expected a cert",
        ),
        (_request(big, names[:1]), "expected a P-256 public key"),
        (_request(ec.generate_private_key(ec.SECP384R1()), names[:1]), "expected a P-256 public key"),
        (_request(key, names), "names one holder, found 2"),
        (_request(key, []), "names one holder, found 0"),
        (_request(key, [x509.DNSName("*.worker.farflung.internal")]), "cannot be an id"),
        (_request(key, [x509.DNSName("broker.broker.farflung.internal")]), "found one for broker as broker"),
        (_forged(key), "not signed by its own key"),
    ]:
        with pytest.raises(IdentityError, match=expected):
            authority.enrol(AskCertificate(token.secret, "lab-1", "worker", request))
    assert uses_left(authority, token) == 1


def test_a_certificate_request_never_makes_a_certificate_authority(authority: Authority) -> None:
    key = new_key()
    name = x509.SubjectAlternativeName([x509.DNSName("lab-1.worker.farflung.internal")])
    request = (
        x509.CertificateSigningRequestBuilder(x509.Name([]))
        .add_extension(name, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    token = authority.create_token("worker")
    certificate = certificate_from_pem(
        authority.enrol(AskCertificate(token.secret, "lab-1", "worker", request))
    )
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_renewal_is_for_the_holder_who_asks_and_the_key_that_joined(
    authority: Authority, clock: Clock
) -> None:
    first, second = new_key(), new_key()
    authority.enrol(asking(authority.create_token("worker"), "lab-1", first))
    authority.enrol(asking(authority.create_token("worker"), "lab-2", second))
    clock.now += 14 * HOUR
    request = signing_request(first, "lab-1", "worker")
    renewed = certificate_from_pem(authority.renew("lab-1", "worker", request))
    assert renewed.not_valid_after_utc.timestamp() == clock.now + 24 * HOUR
    with pytest.raises(IdentityError, match="for lab-2 as worker, found one for lab-1 as worker"):
        authority.renew("lab-2", "worker", request)
    with pytest.raises(IdentityError, match="taken by another key"):
        authority.renew("lab-2", "worker", signing_request(first, "lab-2", "worker"))
    with pytest.raises(IdentityError, match="belongs to a worker"):
        authority.renew("lab-1", "submitter", signing_request(first, "lab-1", "submitter"))
    with pytest.raises(IdentityError, match="never joined"):
        authority.renew("lab-3", "worker", signing_request(first, "lab-3", "worker"))


def test_a_stranger_is_told_whose_certificates_count_and_the_time(authority: Authority, clock: Clock) -> None:
    answer = join_messages.decode_answer(authority.answer(join_messages.encode(AskAuthority()), "here"))
    assert isinstance(answer, TellAuthority)
    assert certificate_from_pem(answer.certificate) == authority.certificate
    assert answer.clock == clock.now


@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_garbage_is_answered_with_a_refusal(data: bytes) -> None:
    # No folder is needed: nothing of the authority is touched by what cannot be read.
    blank = Authority(Path(), None, None, None, lambda: 0.0)  # type: ignore[arg-type]
    answer = join_messages.decode_answer(blank.answer(data, "here"))
    assert isinstance(answer, Refuse) and "cannot read a join message" in answer.reason


def test_oversized_and_surplus_requests_are_refused(authority: Authority) -> None:
    token = authority.create_token("worker")
    good = join_messages.encode(asking(token, "lab-1", new_key()))
    for request in (good + bytes(9000), good + b"\x00", good[:-1]):
        assert isinstance(join_messages.decode_answer(authority.answer(request, "here")), Refuse)
    assert uses_left(authority, token) == 1


@pytest.mark.parametrize(("uses", "hours"), [(0, 1), (-1, 1), (1, 0), (1, -5), (10**9, 1), (1, float("nan"))])
def test_tokens_that_make_no_sense(authority: Authority, uses: int, hours: float) -> None:
    with pytest.raises(IdentityError, match="expected a token for"):
        authority.create_token("worker", uses=uses, hours=hours)


def test_the_brokers_own_certificate_is_kept_and_renewed_at_half_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "farflung")
    clock = Clock()
    clock.now = time.time()
    with Store(tmp_path) as store:
        authority = Authority.open(tmp_path, store, clock)
        first = authority.identity()
        assert (first.id, first.role) == ("broker", "broker")
        assert caplog.messages == [f"a new broker: its certificates are kept in {tmp_path}"]
        assert authority.identity().certificate == first.certificate
        clock.now += 13 * HOUR
        second = authority.identity()
        assert second.certificate != first.certificate
        assert second.expires_at > first.expires_at


def _request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, names: list[x509.DNSName]) -> bytes:
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _forged(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request for the public key of somebody whose private key is not at hand."""
    request = x509.load_pem_x509_csr(signing_request(key, "lab-1", "worker"))
    forged = bytearray(request.public_bytes(serialization.Encoding.DER))
    own = request.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    victim = (
        new_key()
        .public_key()
        .public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    )
    place = forged.index(own)
    forged[place : place + len(own)] = victim
    return x509.load_der_x509_csr(bytes(forged)).public_bytes(serialization.Encoding.PEM)


def joined(authority: Authority, id: str = "lab-1") -> ec.EllipticCurvePrivateKey:
    """The key of a holder that has just joined."""
    key = new_key()
    authority.enrol(asking(authority.create_token("worker"), id, key))
    return key


def renewing(key: ec.EllipticCurvePrivateKey, id: str = "lab-1", role: TokenRole = "worker") -> AskRenewal:
    return AskRenewal(id, role, signing_request(key, id, role))


def told(authority: Authority, asked: AskRenewal) -> TellCertificate | str:
    answer = join_messages.decode_answer(authority.answer(join_messages.encode(asked), "192.0.2.1:9"))
    assert isinstance(answer, TellCertificate | Refuse)
    return answer if isinstance(answer, TellCertificate) else answer.reason


def test_a_certificate_that_has_ended_is_renewed_by_its_key_for_a_while(
    authority: Authority, clock: Clock
) -> None:
    """A machine that was off for longer than a certificate lasts needed a token and a new folder."""
    key = joined(authority)
    clock.now += LIFETIME_SECONDS + RENEWABLE_SECONDS - 60
    answer = told(authority, renewing(key))
    assert isinstance(answer, TellCertificate)
    fresh = certificate_from_pem(answer.certificate)
    assert read_holder(fresh) == ("lab-1", "worker")
    assert fresh.not_valid_after_utc.timestamp() == pytest.approx(clock.now + LIFETIME_SECONDS, abs=1)
    clock.now += LIFETIME_SECONDS + RENEWABLE_SECONDS + 60
    reason = told(authority, renewing(key))
    assert isinstance(reason, str) and "ended more than 7 days ago: join again with a token" in reason


def test_only_its_own_key_renews_a_certificate_that_has_ended(authority: Authority, clock: Clock) -> None:
    key = joined(authority)
    clock.now += LIFETIME_SECONDS + 60
    for asked, words in (
        (renewing(new_key()), "the id 'lab-1' is taken by another key"),
        (renewing(key, "lab-2"), "lab-2 never joined this broker as worker"),
        (renewing(key, role="submitter"), "belongs to a worker"),
        (AskRenewal("lab-1", "worker", signing_request(key, "lab-2", "worker")), "found one for lab-2"),
        (AskRenewal("lab-1", "worker", b"nonsense"), "certificate request"),
    ):
        reason = told(authority, asked)
        assert isinstance(reason, str) and words in reason


def test_a_removed_member_cannot_renew_a_certificate_that_has_ended(tmp_path: Path, clock: Clock) -> None:
    with Store(tmp_path) as store:
        authority = Authority.open(tmp_path, store, clock, refusal=lambda id: f"{id} was removed")
        key = new_key()
        certificate = authority._issue(("lab-1", "worker"), key.public_key(), b"d" * 32)
        assert read_holder(certificate_from_pem(certificate)) == ("lab-1", "worker")
        clock.now += LIFETIME_SECONDS + 60
        assert told(authority, renewing(key)) == "lab-1 was removed"
