"""Errors of the Python API speak of arguments where those of the command line speak of options."""

from __future__ import annotations

import pytest

from farflung.client.api.wording import in_python_words, python_words
from farflung.client.beginning.source import snake_case
from farflung.errors import CaptureError


def test_options_are_arguments_and_commands_stay() -> None:
    assert python_words("ask for more with --steps, or `farflung export --to x`") == (
        "ask for more with steps=, or `farflung export --to x`"
    )
    assert python_words("use --workers 2; --checkpoint-every saves none") == (
        "use workers=2; checkpoint_every= saves none"
    )
    with pytest.raises(CaptureError, match=r"^leave out= out$") as raised, in_python_words():
        raise CaptureError("leave --out out", "state")
    assert raised.value.lint == "state"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("GPT", "gpt"),
        ("TinyGPT2Model", "tiny_gpt2_model"),
        ("ViT", "vi_t"),
        ("lower", "lower"),
        ("_", ""),
    ],
)
def test_a_class_name_becomes_the_name_of_a_job(name: str, words: str) -> None:
    assert snake_case(name) == words
