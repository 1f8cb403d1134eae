"""Names of gpt-oss as OpenAI stores it, and those of the same tensors on the Hub. Rules: CNV-16."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fp4ref.checkpoints.shards import StoredTensor

SOURCE = "transformers 5.23.0, the script that converts gpt-oss"
EXPERTS = re.compile(r"block\.\d+\.mlp\.mlp[12]_weight\..+")  # no other model has these
LAYER = re.compile(r"block\.(\d+)\.(.+)")
IN_LAYERS = {
    "attn.norm.scale": "input_layernorm.weight",
    "attn.out": "self_attn.o_proj",
    "attn.sinks": "self_attn.sinks",
    "mlp.norm.scale": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.router",
    "mlp.mlp1_weight": "mlp.experts.gate_up_proj",
    "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.mlp2_weight": "mlp.experts.down_proj",
    "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
}
OUTSIDE = {"embedding": "model.embed_tokens", "unembedding": "lm_head", "norm.scale": "model.norm.weight"}
TOGETHER = "attn.qkv."  # the rows of queries, keys and values, one after the other


def on_the_hub(name: str) -> str:
    """Return the Hub's name of a tensor; the same name if it has no other."""
    match = LAYER.fullmatch(name)
    inner = match[2] if match else name
    for old, new in (IN_LAYERS if match else OUTSIDE).items():
        if inner == old or inner.startswith(f"{old}."):
            return (f"model.layers.{match[1]}." if match else "") + new + inner[len(old) :]
    return name


def parts_on_the_hub(tensor: StoredTensor, config: Mapping[str, Any]) -> Iterator[StoredTensor]:
    """Yield a tensor under its names on the Hub: one, or the three that it has the rows of if the sizes fit."""
    match = LAYER.fullmatch(tensor.name)
    if match is None or not match[2].startswith(TOGETHER):
        yield replace(tensor, name=on_the_hub(tensor.name))
        return
    sizes = [config.get(key) for key in ("head_dim", "num_attention_heads", "num_key_value_heads")]
    head, queries, keys = (size if isinstance(size, int) and size > 0 else 0 for size in sizes)
    rows = [head * heads for heads in (queries, keys, keys)]
    if not all(rows) or not tensor.shape or sum(rows) != tensor.shape[0]:
        yield tensor
        return
    start, row = tensor.start, tensor.count // tensor.shape[0]
    for letter, count in zip("qkv", rows, strict=True):
        name = f"model.layers.{match[1]}.self_attn.{letter}_proj.{match[2].removeprefix(TOGETHER)}"
        yield StoredTensor(name, tensor.dtype, (count, *tensor.shape[1:]), tensor.shard, start, count * row)
        start += count * row
