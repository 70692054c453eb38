from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import IdentityError
from farflung.transport.security.tokens import TOKEN_ROLES, Token

tokens = st.builds(
    Token,
    role=st.sampled_from(TOKEN_ROLES),
    fingerprint=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=16, max_size=16),
)


@settings(max_examples=50)
@given(tokens)
def test_a_token_survives_its_text(token: Token) -> None:
    assert Token.parse(token.text) == token


@settings(max_examples=50)
@given(tokens, st.integers(min_value=1, max_value=88))
def test_a_wrapped_paste_is_the_same_token(token: Token, controller: int) -> None:
    assert Token.parse(f"  {token.text[:controller]}\n   {token.text[controller:]}\r\n") == token


def test_no_mistyped_character_gives_a_token_at_any_position() -> None:
    token = Token.create("submitter", bytes(range(32)))
    for position, right in enumerate(token.text):
        for wrong in set(string.printable) - {right}:
            with pytest.raises(IdentityError):
                Token.parse(token.text[:position] + wrong + token.text[position + 1 :])


@settings(max_examples=50)
@given(tokens, st.data())
def test_swapped_neighbours_never_give_a_token(token: Token, data: st.DataObject) -> None:
    text = token.text
    position = data.draw(st.integers(min_value=4, max_value=len(text) - 2))
    swapped = text[:position] + text[position + 1] + text[position] + text[position + 2 :]
    if swapped == text:
        return
    with pytest.raises(IdentityError, match="copy it again"):
        Token.parse(swapped)


def test_errors_tell_mistyped_from_cut_from_no_token_and_hide_the_secret() -> None:
    text = Token.create("worker", bytes(32)).text
    last = "a" if text[-5] != "a" else "b"
    cases = {
        text[:-5] + last + text[-4:]: "the token's checksum does not match: copy it again",
        text[:-3]: "the token has 86 characters instead of 89",
        "0" + text: "this is not a farflung token",
        "": "the token is empty",
        "ff2" + text[3:]: "this is not a farflung token",
        text[:-1] + "1": "a character that no token has",
        text[:-1] + "ı": "copy it again",
    }
    for wrong, expected in cases.items():
        with pytest.raises(IdentityError, match=expected) as caught:
            Token.parse(wrong)
        assert text[40:60] not in str(caught.value)


@settings(max_examples=50)
@given(st.text(max_size=120))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(IdentityError):
        Token.parse(text)
    with pytest.raises(IdentityError):
        Token.parse("ff1-" + text)


def test_a_printed_token_object_shows_no_secret() -> None:
    token = Token("worker", bytes(32), b"0123456789abcdef")
    assert "0123456789abcdef" not in repr(token)


def test_two_tokens_differ() -> None:
    assert Token.create("worker", bytes(32)).secret != Token.create("worker", bytes(32)).secret
