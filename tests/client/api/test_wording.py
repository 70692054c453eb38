"""Errors of the Python API speak of arguments where those of the command line speak of options."""

from __future__ import annotations

import inspect

import pytest

import farflung
from farflung.client.api.wording import ARGUMENTS, in_python_words, python_words
from farflung.client.beginning.source import snake_case
from farflung.errors import CaptureError


def test_options_are_arguments_and_commands_stay() -> None:
    assert python_words("ask for more with --steps, or `farflung export --to x`") == (
        "ask for more with steps=, or `farflung export --to x`"
    )
    assert python_words("use --workers 2; --checkpoint-every saves none") == (
        "use workers=2; checkpoint_every= saves none"
    )
    assert python_words("add --local N, or --wait to wait for it") == (
        "add farflung.local(N), or wait_for_workers=True to wait for it"
    )
    assert python_words("--on names a--b twice: a--on, b") == "on= names a--b twice: a--on, b"
    assert python_words("found '--steps 2': use --scheduler auto, --broker HOST:PORT or --codec 'x'") == (
        "found '--steps 2': use scheduler='auto', broker=HOST:PORT or codec='x'"
    )
    assert python_words("--set lr=-1 and --name are of no Python call") == (
        "--set lr=-1 and --name are of no Python call"
    )
    with pytest.raises(CaptureError, match=r"^leave out= out$") as raised, in_python_words():
        raise CaptureError("leave --out out", "state")
    assert raised.value.lint == "state"


def test_each_argument_that_a_message_names_is_one_of_python() -> None:
    calls = (farflung.Fleet.train, farflung.connect, farflung.local, farflung.plan, farflung.check)
    known = {name for call in calls for name in inspect.signature(call).parameters}
    named = {words.partition("=")[0] for words in ARGUMENTS.values() if "=" in words}
    assert named <= known and len(named) > 15


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
