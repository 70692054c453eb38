"""Shrink a configuration of transformers, by one rule for all.

* Two layers, or as many as the shortest list of layer kinds that has each; one block for each stage.
* Widths and attention heads are divided by the same number, so that two heads are left and heads keep their
  width. Rules between them (hidden size = heads x width of a head) stay true.
* A vocabulary of 256, four experts of which two are chosen, one expert group.
* A vocabulary, a padding token and a first token of the decoder where the library leaves them to the user.
* No layer drop and no SpecAugment, which `farflung check` refuses: what runs would depend on random numbers
  in Python.
* Images of 64 x 64 where the configuration has a size, which must be a multiple of four patches.

If the model does not run like this, it is tried with full widths, and last also with images of full size.
"""

from __future__ import annotations

import re
from typing import Any

VOCABULARY = 256
LAYERS = 2
EXPERTS = 4
IMAGE = 64

_LAYERS = re.compile(
    r"^(n_layers?|num_layers|num_blocks|num_(\w+_)?(hidden_)?layers|(encoder|decoder)_(num_)?layers|layers|n_head_layers)$"
)
_NOT_LAYERS = re.compile(r"conv|feat|adapter|positional|shared|dense|attention_layers|mtp|nextn")
_HEADS = re.compile(r"^(n_heads?|num_heads|num_attention_heads|(encoder|decoder)_attention_heads)$")
_KEY_HEADS = re.compile(r"^(num_(key_value|kv)_heads|n_head_kv|multi_query_group_num)$")
_WIDTHS = re.compile(
    r"^(hidden_size|d_model|n_embd|n_embed|dim|hidden_dim|embed_dim|embedding_size|emb_dim|d_ff|n_inner|lru_width"
    r"|d_inner|ffn_dim|ffn_hidden_size|word_embed_proj_dim|(\w+_)?intermediate_size(\w+)?|(encoder|decoder)_ffn_dim"
    r"|mlp_dim|inner_dim|d_embed|width|hidden_sizes_per_layer|\w+_hidden_size)$"
)
_EXPERTS = re.compile(
    r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$"
)
_CHOSEN = re.compile(r"^(num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|num_selected_experts)$")
_ONE = ("n_group", "topk_group", "num_expert_group")
_STAGES = ("depths", "num_blocks_per_stage", "layers_per_stage")


def shrink(config: Any, widths: bool, images: bool) -> None:
    """Shrink a configuration and those inside it, in place."""
    for part in _parts(config):
        _shrink_one(part, widths, images)


def _parts(config: Any) -> list[Any]:
    found = [config]
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found.extend(_parts(value))
    return found


def _shrink_one(config: Any, widths: bool, images: bool) -> None:
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    numbers = {n: v for n, v in fields.items() if isinstance(v, int) and not isinstance(v, bool)}
    layers = _shrink_layers(config, fields, numbers)
    heads = [value for name, value in numbers.items() if _HEADS.match(name) and value > 1]
    factor = max(1, min(heads, default=2) // 2) if widths else 1
    for name, value in numbers.items():
        if _LAYERS.match(name) and not _NOT_LAYERS.search(name):
            _put(config, name, min(value, layers))
        elif _HEADS.match(name) or _KEY_HEADS.match(name):
            _put(config, name, max(1, value // factor))
        elif _WIDTHS.match(name) and "layers" not in name and value >= factor:
            _put(config, name, value // factor)
        elif name.endswith("vocab_size") and value > VOCABULARY:
            _put(config, name, VOCABULARY)
        elif _EXPERTS.match(name) and value > EXPERTS:
            _put(config, name, EXPERTS)
        elif _CHOSEN.match(name) and value > 2:
            _put(config, name, 2)
        elif name in _ONE:
            _put(config, name, 1)
        elif name == "image_size" and images and value > IMAGE:
            patch = numbers.get("patch_size", 16)
            _put(config, name, IMAGE if IMAGE % patch == 0 else 4 * patch)
    for name in fields:
        if name.endswith("layerdrop"):
            _put(config, name, 0.0)
        elif name == "mask_time_prob":
            _put(config, "apply_spec_augment", False)
    for name in _STAGES:
        if isinstance(fields.get(name), list | tuple):
            _put(config, name, [1] * len(fields[name]))
    _shrink_tokens(config, fields)


def _shrink_layers(config: Any, fields: dict[str, Any], numbers: dict[str, int]) -> int:
    """The number of layers, and every list with one entry a layer cut to it."""
    before = {v for n, v in numbers.items() if _LAYERS.match(n) and not _NOT_LAYERS.search(n)}
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list | tuple) and len(value) in before and len(value) > LAYERS
    }
    least = LAYERS
    for value in lists.values():
        kinds = {str(entry) for entry in value}
        while len({str(entry) for entry in value[:least]}) < len(kinds) and least < len(value):
            least += 1
    for name, value in lists.items():
        _put(config, name, list(value[:least]))
    return least


def _shrink_tokens(config: Any, fields: dict[str, Any]) -> None:
    """Ids of special tokens at the end of the vocabulary, those that are too large."""
    if "vocab_size" in fields and fields["vocab_size"] is None:
        _put(config, "vocab_size", VOCABULARY)
    if getattr(config, "pad_token_id", None) is None:
        _put(config, "pad_token_id", 0)
    if fields.get("is_encoder_decoder") and getattr(config, "decoder_start_token_id", None) is None:
        _put(config, "decoder_start_token_id", getattr(config, "pad_token_id", None) or 0)
    vocabulary = getattr(config, "vocab_size", VOCABULARY) or VOCABULARY
    free = min(VOCABULARY, vocabulary if isinstance(vocabulary, int) else VOCABULARY) - 1
    for name, value in fields.items():
        if not re.search(r"_token(_id|_index|s_ids?)?$|_token_ids?$", name):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value > free - 32:
            _put(config, name, free)
            free -= 1
        elif isinstance(value, list) and any(isinstance(v, int) and v > free - 32 for v in value):
            _put(config, name, [free - at for at in range(len(value))])
            free -= len(value)


def _put(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # a computed field
        return
