"""Hugging Face's language models: decoders, an encoder that classifies, an encoder beside a decoder."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.zoo.batches import SEQUENCE, SYMBOLS, WIDTH, labelled_texts, labelled_tokens
from benchmarks.zoo.case import Batch, Case, RealSize, seeded
from benchmarks.zoo.hugging_face import EVERYWHERE, TIED, model

COMMON: dict[str, Any] = {"use_cache": False, "attn_implementation": "sdpa"}
DECODER: dict[str, Any] = {
    **COMMON,
    "vocab_size": SYMBOLS,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 32,
}
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "experts_implementation": "batched_mm",
}
LLAMA_1B: dict[str, Any] = {
    **COMMON,
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
QWEN3_600M: dict[str, Any] = {
    **COMMON,
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
BERT: dict[str, Any] = {
    "attn_implementation": "sdpa",
    "vocab_size": SYMBOLS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "num_labels": 3,
    "max_position_embeddings": 32,
}
T5: dict[str, Any] = {
    "use_cache": False,
    "vocab_size": SYMBOLS,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "decoder_start_token_id": 0,
}


def sentences(samples: int, seed: int, length: int = SEQUENCE, symbols: int = SYMBOLS) -> Batch:
    """Sentences of two parts, padded to one length, and a class for each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, length + 1, (samples, 1), generator=generator)
    places = torch.arange(length)
    return {
        "input_ids": torch.randint(0, symbols, (samples, length), generator=generator),
        "attention_mask": (places < lengths).long(),
        "token_type_ids": (places >= lengths // 2).long(),
        "labels": torch.randint(0, 3, (samples,), generator=generator),
    }


def translations(samples: int, seed: int, length: int = SEQUENCE, symbols: int = SYMBOLS) -> Batch:
    """Sentences and what they become, of other lengths; a few places do not count."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(1, symbols, (samples, length // 2 + 1), generator=generator)
    labels[:, 5] = -100
    mask = torch.ones(samples, length, dtype=torch.long)
    mask[0, -3:] = 0
    return {
        "input_ids": torch.randint(1, symbols, (samples, length), generator=generator),
        "attention_mask": mask,
        "labels": labels,
    }


CASES = [
    Case(
        "gpt2",
        seeded(model("GPT2LMHeadModel", vocab_size=SYMBOLS, n_embd=WIDTH, n_layer=4, n_head=2, **COMMON)),
        labelled_tokens,
        tolerance=1e-5,
        notes=f"Dropout everywhere. {TIED}",
        real=RealSize(
            "124M, 1,024 symbols", model("GPT2LMHeadModel", **COMMON), labelled_texts(1024, 50_257)
        ),
    ),
    Case(
        "llama",
        seeded(model("LlamaForCausalLM", **DECODER)),
        labelled_tokens,
        tolerance=1e-5,
        notes=f"Rotary positions, grouped heads. {EVERYWHERE}",
        real=RealSize(
            "1.1B, 2,048 symbols", model("LlamaForCausalLM", **LLAMA_1B), labelled_texts(2048, 32_000)
        ),
    ),
    Case(
        "qwen3",
        seeded(model("Qwen3ForCausalLM", tie_word_embeddings=True, **DECODER)),
        labelled_tokens,
        tolerance=1e-5,
        notes=f"Norms of queries and keys. {TIED}",
        real=RealSize(
            "0.6B, 1,024 symbols",
            model("Qwen3ForCausalLM", tie_word_embeddings=True, **QWEN3_600M),
            labelled_texts(1024, 151_936),
        ),
    ),
    Case(
        "qwen3-moe",
        seeded(model("Qwen3MoeForCausalLM", **DECODER, **EXPERTS)),
        labelled_tokens,
        tolerance=1e-5,
        notes=f"Two of four experts a symbol, experts_implementation='batched_mm'. {EVERYWHERE}",
    ),
    Case(
        "bert",
        seeded(model("BertForSequenceClassification", **BERT)),
        sentences,
        tolerance=1e-5,
        notes=f"Classifies sentences; padding is masked, dropout in attention. {EVERYWHERE}",
        real=RealSize(
            "base, 110M, 512 symbols",
            model("BertForSequenceClassification", num_labels=3, attn_implementation="sdpa"),
            lambda samples, seed: sentences(samples, seed, 512, 30_522),
        ),
    ),
    Case(
        "t5",
        seeded(model("T5ForConditionalGeneration", **T5)),
        translations,
        tolerance=1e-5,
        notes=f"Encoder states and position bias feed every layer of the decoder. {TIED}",
        real=RealSize(
            "small, 60M, 512 symbols to 257",
            model("T5ForConditionalGeneration", use_cache=False, decoder_start_token_id=0),
            lambda samples, seed: translations(samples, seed, 512, 32_128),
        ),
    ),
]
