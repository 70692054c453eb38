"""The key of an authority: encrypted by a passphrase, or kept apart from the broker's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.broker.backup import back_up, restore
from farflung.broker.security.authority import Authority, create_token
from farflung.broker.security.authority_key import (
    AUTHORITY_KEY_FILE,
    KeySource,
    change_passphrase,
    decrypted,
    encrypted,
)
from farflung.broker.storage.store import Store
from farflung.errors import IdentityError
from farflung.transport.security.certificates import fingerprint, key_to_pem, new_key

WORDS = KeySource(passphrase="correct horse")


def unasked(file: Path) -> str:
    raise AssertionError("no passphrase is to be asked for")


def opens(folder: Path, source: KeySource) -> bytes:
    """The fingerprint of the authority in a folder."""
    with Store(folder) as store:
        return fingerprint(Authority.open(folder, store, source=source).certificate)


def test_a_new_key_is_encrypted_by_the_passphrase_and_opens_with_it_alone(tmp_path: Path) -> None:
    first = opens(tmp_path, WORDS)
    held = (tmp_path / AUTHORITY_KEY_FILE).read_bytes()
    assert b"ENCRYPTED" in held and b"BEGIN PRIVATE KEY" not in held
    assert (tmp_path / AUTHORITY_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert opens(tmp_path, KeySource(ask=lambda file: "correct horse")) == first
    for wrong in ("correct horse ", "", "wrong horse"):
        with pytest.raises(IdentityError, match=r"does not open .*authority-key\.pem: give the right one"):
            opens(tmp_path, KeySource(passphrase=wrong))
    with pytest.raises(IdentityError, match=r"is encrypted: give its passphrase by --passphrase-file, or in"):
        opens(tmp_path, KeySource())


def test_tokens_are_made_without_the_passphrase(tmp_path: Path) -> None:
    authority = opens(tmp_path, WORDS)
    assert create_token(tmp_path, "worker").fingerprint == authority


def test_a_passphrase_is_set_changed_and_removed(tmp_path: Path) -> None:
    first = opens(tmp_path, KeySource(ask=unasked))
    with pytest.raises(IdentityError, match=r"is not encrypted: farflung broker passphrase does that"):
        WORDS.opened(tmp_path)
    change_passphrase(tmp_path, KeySource(ask=unasked), "correct horse")
    assert opens(tmp_path, WORDS.opened(tmp_path)) == first
    with pytest.raises(IdentityError, match="does not open"):
        change_passphrase(tmp_path, KeySource(passphrase="another horse"), "staple battery")
    change_passphrase(tmp_path, WORDS, "staple battery")
    with pytest.raises(IdentityError, match="does not open"):
        WORDS.opened(tmp_path)
    change_passphrase(tmp_path, KeySource(passphrase="staple battery"), None)
    assert opens(tmp_path, KeySource(ask=unasked)) == first


def test_a_short_passphrase_changes_nothing(tmp_path: Path) -> None:
    first = opens(tmp_path, KeySource())
    with pytest.raises(IdentityError, match="has 7 characters: choose one of at least 8"):
        change_passphrase(tmp_path, KeySource(), "1234567")
    assert opens(tmp_path, KeySource()) == first


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:60],
        lambda data: data[:-70] + b"AAAA" + data[-66:],
        lambda data: data.replace(data[40:44], b"!!!!"),
        lambda data: data[:39],
    ],
)
def test_a_damaged_key_is_one_line(damage: Callable[[bytes], bytes]) -> None:
    data = encrypted(new_key(), "correct horse")
    with pytest.raises(IdentityError, match=r"^[^\n]*does not open key: give the right one[^\n]*$"):
        decrypted(damage(data), "correct horse", Path("key"))


def test_the_same_key_and_passphrase_never_make_the_same_file() -> None:
    key = new_key()
    first, second = encrypted(key, "correct horse"), encrypted(key, "correct horse")
    assert first[40:100] != second[40:100]
    opened = decrypted(second, "correct horse", Path("key"))
    assert key_to_pem(opened) == key_to_pem(key)


def test_a_key_that_is_kept_apart_is_neither_in_the_folder_nor_in_backups(tmp_path: Path) -> None:
    folder, apart = tmp_path / "hub", KeySource(file=tmp_path / "stick.pem")
    first = opens(folder, apart)
    assert not (folder / AUTHORITY_KEY_FILE).exists() and apart.file is not None
    assert create_token(folder, "worker").fingerprint == first
    with pytest.raises(IdentityError, match=r"is missing: put a copy of it back, or name with --ca"):
        opens(folder, KeySource())
    made = back_up(folder, tmp_path / "fleet.backup", apart)
    assert made.key == "apart"
    assert apart.file.read_bytes() not in (tmp_path / "fleet.backup").read_bytes()
    assert restore(tmp_path / "fleet.backup", tmp_path / "new").key == "apart"
    assert not (tmp_path / "new" / AUTHORITY_KEY_FILE).exists()
    assert opens(tmp_path / "new", apart) == first


def test_an_encrypted_key_stays_encrypted_in_a_backup(tmp_path: Path) -> None:
    first = opens(tmp_path / "hub", WORDS)
    assert back_up(tmp_path / "hub", tmp_path / "fleet.backup").key == "encrypted"
    assert restore(tmp_path / "fleet.backup", tmp_path / "new").key == "encrypted"
    assert opens(tmp_path / "new", WORDS) == first


def test_a_key_of_another_broker_is_refused(tmp_path: Path) -> None:
    opens(tmp_path / "hub", WORDS)
    opens(tmp_path / "other", WORDS)
    other = KeySource(tmp_path / "other" / AUTHORITY_KEY_FILE, "correct horse")
    with pytest.raises(IdentityError, match=r"is not the key of authority\.pem"):
        opens(tmp_path / "hub", other)
