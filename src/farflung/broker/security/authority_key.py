"""The private key of a broker's certificate authority: in its folder or apart, plain or encrypted.

Encrypted is AES-256-GCM under a key that scrypt (RFC 7914; 32 MiB) makes of the passphrase: with the usual
encryption of PEM files guesses are cheap.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from farflung.errors import IdentityError
from farflung.files import sync, write_atomically
from farflung.transport.security.certificates import (
    certificate_from_pem,
    key_from_pem,
    key_to_pem,
    public_bytes,
)
from farflung.transport.security.identity import AUTHORITY_FILE, read_private

AUTHORITY_KEY_FILE = "authority-key.pem"
LEAST_CHARACTERS = 8

_BEGIN = b"-----BEGIN FARFLUNG ENCRYPTED KEY-----\n"
_END = b"-----END FARFLUNG ENCRYPTED KEY-----\n"
_WHAT = b"farflung authority key 1"  # authenticated with the key, so that nothing else passes for one
_SALT_BYTES, _NONCE_BYTES = 16, 12


def _no_passphrase(file: Path) -> str:
    raise IdentityError(
        f"{file} is encrypted: give its passphrase by --passphrase-file, or in FARFLUNG_PASSPHRASE"
    )


@dataclass(frozen=True)
class KeySource:
    """Where a broker finds the key of its authority: in `file`, or without one in its own folder.

    `passphrase` opens it if it is encrypted, and encrypts it if it is made; without one, `ask` is called with
    the file once a passphrase is needed.
    """

    file: Path | None = None
    passphrase: str | None = field(default=None, repr=False)
    ask: Callable[[Path], str] = _no_passphrase

    def file_for(self, folder: Path) -> Path:
        """The key's file for the broker of `folder`."""
        return self.file or folder / AUTHORITY_KEY_FILE

    def read(self, folder: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
        """The key of the authority with this certificate.

        Raises
        ------
        IdentityError
            It is missing, is not the certificate's, or the passphrase is wrong or missing.
        """
        file = self.file_for(folder)
        key = self._key(file)
        if (
            not _fits(key, certificate)
            and _next(file).exists()
            and _fits(self._key(_next(file)), certificate)
        ):
            self.take_next(folder)  # the key was being replaced when the process was killed
            key = self._key(file)
        if not _fits(key, certificate):
            raise IdentityError(f"{file} is not the key of {AUTHORITY_FILE}: put a copy of it back")
        return key

    def _key(self, file: Path) -> ec.EllipticCurvePrivateKey:
        data = read_key_file(file)
        return decrypted(data, self._passphrase_of(file), file) if is_encrypted(data) else key_from_pem(data)

    def check(self, folder: Path, certificate: x509.Certificate) -> None:
        """As `read`, but an encrypted key is not opened."""
        if not is_encrypted(read_key_file(self.file_for(folder))):
            self.read(folder, certificate)

    def opened(self, folder: Path) -> KeySource:
        """The same with the passphrase that opens the key in it, if there is an encrypted one.

        Raises
        ------
        IdentityError
            As `read`; or a passphrase was given for a key that is not encrypted.
        """
        file = self.file_for(folder)
        if not (folder / AUTHORITY_FILE).exists():
            return self  # a new broker
        certificate = read_certificate(folder)
        if not is_encrypted(read_key_file(file)):
            if self.passphrase is not None:
                raise IdentityError(
                    f"a passphrase was given, but {file} is not encrypted: farflung broker passphrase"
                    " does that"
                )
            return self
        known = replace(self, passphrase=self._passphrase_of(file))
        known.read(folder, certificate)
        return known

    def _passphrase_of(self, file: Path) -> str:
        return self.ask(file) if self.passphrase is None else self.passphrase

    def write(self, folder: Path, key: ec.EllipticCurvePrivateKey) -> None:
        """Store a key, for its owner only; encrypted if there is a passphrase."""
        write_key_file(self.file_for(folder), key, self.passphrase)

    def write_next(self, folder: Path, key: ec.EllipticCurvePrivateKey) -> None:
        """Store the key that will take the place of the one there; with the same passphrase."""
        file = self.file_for(folder)
        needs = is_encrypted(read_key_file(file))
        write_key_file(_next(file), key, self._passphrase_of(file) if needs else None)

    def take_next(self, folder: Path) -> None:
        """Let the key that was written by `write_next` take its place."""
        file = self.file_for(folder)
        try:
            _next(file).replace(file)
            sync(file.parent)
        except OSError as error:
            raise IdentityError(f"{file} cannot be written ({error.strerror}): run this again") from None


def _next(file: Path) -> Path:
    return file.with_name(f"{file.name}.next")


def _fits(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    return public_bytes(key.public_key()) == public_bytes(certificate.public_key())


IN_FOLDER = KeySource()
"""In the broker's folder; an encrypted key is not opened."""


def read_certificate(folder: Path) -> x509.Certificate:
    """The certificate of the authority of a broker's folder.

    Raises
    ------
    IdentityError
        The folder has no broker.
    """
    try:
        return certificate_from_pem((folder / AUTHORITY_FILE).read_bytes())
    except OSError as error:
        raise IdentityError(
            f"{folder / AUTHORITY_FILE} cannot be read ({error.strerror}): name the broker by --folder"
        ) from None


def change_passphrase(folder: Path, source: KeySource, passphrase: str | None) -> Path:
    """Encrypt the key of the broker of `folder`, which may be running, anew, and return its file.

    Without a new passphrase the key is stored unencrypted.

    Raises
    ------
    IdentityError
        As `KeySource.read`; or the new passphrase is too short, or the file cannot be written.
    """
    key = source.read(folder, read_certificate(folder))
    file = source.file_for(folder)
    write_key_file(file, key, passphrase)
    return file


def read_key_file(file: Path) -> bytes:
    """The bytes of a key file; IdentityError if it is missing or others may read it."""
    if not file.exists():
        raise IdentityError(
            f"{file} is missing: put a copy of it back, or name with --ca where it is kept (without it, "
            "every holder must join a new broker)"
        )
    return read_private(file)


def write_key_file(file: Path, key: ec.EllipticCurvePrivateKey, passphrase: str | None) -> None:
    """Store a key, for its owner only; encrypted if there is a passphrase.

    Raises
    ------
    IdentityError
        The file cannot be written, or the passphrase is too short.
    """
    data = key_to_pem(key) if passphrase is None else encrypted(key, passphrase)
    try:
        write_atomically(file, data, mode=0o600)
    except OSError as error:
        raise IdentityError(f"{file} cannot be written ({error.strerror}): choose another place") from None


def is_encrypted(data: bytes) -> bool:
    """Whether a key file needs a passphrase."""
    return data.startswith(_BEGIN)


def encrypted(key: ec.EllipticCurvePrivateKey, passphrase: str) -> bytes:
    """The key as the contents of a file that only the passphrase opens.

    Raises
    ------
    IdentityError
        The passphrase is too short.
    """
    if len(passphrase) < LEAST_CHARACTERS:
        raise IdentityError(
            f"the passphrase has {len(passphrase)} characters: choose one of at least {LEAST_CHARACTERS}"
        )
    salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
    sealed = AESGCM(_stretched(passphrase, salt)).encrypt(nonce, key_to_pem(key), _WHAT)
    return _BEGIN + base64.encodebytes(salt + nonce + sealed) + _END


def decrypted(data: bytes, passphrase: str, file: Path) -> ec.EllipticCurvePrivateKey:
    """The key in the contents of an encrypted `file`.

    Raises
    ------
    IdentityError
        The passphrase is wrong, or the file is damaged.
    """
    try:
        body = base64.b64decode(data.removeprefix(_BEGIN).removesuffix(_END))
        salt, nonce = body[:_SALT_BYTES], body[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
        opened = AESGCM(_stretched(passphrase, salt)).decrypt(
            nonce, body[_SALT_BYTES + _NONCE_BYTES :], _WHAT
        )
    except (InvalidTag, binascii.Error, ValueError):
        raise IdentityError(
            f"the passphrase does not open {file}: give the right one, or a copy of the file if it is damaged"
        ) from None
    return key_from_pem(opened)


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=2**15, r=8, p=3).derive(passphrase.encode())
