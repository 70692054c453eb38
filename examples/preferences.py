"""A tiny language model learns by DPO which of two answers is preferred: the one that does not shout.

    pip install peft transformers
    farflung train examples/preferences.py --local 4

Needs no network: the model is small and begins with random weights, and answers are docstrings of the
Python that runs this. The reference model of DPO is the model without its adapter: each worker holds its
layers once and runs both through them. `accuracy` is the share of held-out pairs whose chosen answer has the
larger reward; without training it is 0, because all rewards are.
"""

from __future__ import annotations

import builtins
import inspect
import math
import os
import random
import string

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import farflung

LENGTH = 128
"""Bytes of a question with an answer and padding."""

HELD_OUT = 4
"""One question in so many is for validation, and is never trained on."""

END = 0
"""The byte that ends an answer."""


def pairs() -> list[dict[str, list[int]]]:
    """What functions do, as their documentation says it, and the same in capitals."""
    found = []
    for module in (builtins, math, os, random, string):
        for name, member in sorted(vars(module).items()):
            line = (inspect.getdoc(member) or "").partition("\n")[0] if inspect.isroutine(member) else ""
            if name.startswith("_") or not 10 <= len(line) <= 80 or not line.isascii():
                continue
            question = f"What does {name} do? "
            answers = {"chosen": line, "rejected": line.upper()}
            found.append(
                {
                    "prompt": [*question.encode()],
                    **{of: [*text.encode(), END] for of, text in answers.items()},
                }
            )
    return found


def policy() -> nn.Module:
    """A Llama of four layers on bytes, with a LoRA adapter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        use_cache=False,
    )
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(config), adapter)


def job() -> farflung.Job:
    """What farflung trains; `runs/preferences/adapter` is loaded by plain PEFT."""
    found = pairs()
    return farflung.Job(
        model=farflung.objectives.DPO(policy(), beta=0.1),
        data=[pair for at, pair in enumerate(found) if at % HELD_OUT],
        validation=found[::HELD_OUT],
        collate=farflung.data.Pairs(LENGTH),
        optimizer=farflung.AdamW(lr=3e-3),
        batch=8,
        microbatches=4,
        steps=20,
        clip=1.0,
        validation_batches=None,
        metrics={"accuracy": farflung.metrics.reward_accuracy},
    )
