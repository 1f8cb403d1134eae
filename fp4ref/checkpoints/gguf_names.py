"""Names, orders of rows and numbers of models in GGUF, by the model's type, as llama.cpp reads them.

Rules: CNV-19.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

SUFFIXES = "weight|bias|scale|input_scale"
SOURCE = (
    "convert_hf_to_gguf.py of llama.cpp (2026-10); names compared with gguf 0.19.0, models loaded by llama.cpp b11549"
)


class RowOrder(StrEnum):
    """The order of a tensor's rows in GGUF, or the share of them that one of its tensors has."""

    SAME = "same"
    QUERY = "query"  # in each head, rows of both halves alternate: rotary embeddings of neighbours
    KEY = "key"  # the same, by the number of heads of keys
    EVEN = "even"
    ODD = "odd"


class GgufName(NamedTuple):
    """A tensor's name on the Hub and in GGUF.

    `{i}` is a layer, `{e}` an expert, of which GGUF stacks all in one tensor. A trailing `*` is `.weight`, `.bias`, or
    the suffix of a scale.
    """

    hub: str
    gguf: str
    order: RowOrder = RowOrder.SAME


class GgufNumber(NamedTuple):
    """A hyperparameter. key: in GGUF, behind the architecture. config: keys of config.json, of which the first counts.

    form: of `struct`.
    """

    key: str
    config: tuple[str, ...]
    form: str = "I"


class Placement(NamedTuple):
    """The place of a tensor of the Hub in a GGUF file. expert: its place in a stack, or None."""

    name: str
    order: RowOrder
    expert: int | None


@dataclass(frozen=True)
class GgufArchitecture:
    """An architecture of llama.cpp. name: its own. model_type: that of config.json."""

    name: str
    model_type: str
    names: tuple[GgufName, ...]
    numbers: tuple[GgufNumber, ...]

    def place(self, name: str) -> list[Placement]:
        """Return the tensors of GGUF that have a part of one of the Hub; nothing if there is no name for it.

        Rules: CNV-19.
        """
        found = []
        for each in self.names:
            if match := _pattern(each.hub).fullmatch(name):
                values = {"e": None, "s": "", **match.groupdict()}
                expert = int(values["e"]) if values["e"] is not None else None
                new = each.gguf.replace("{i}", str(values.get("i"))).replace("*", f".{values['s']}")
                found.append(Placement(new, each.order, expert))
        return found

    def hub_name(self, name: str) -> tuple[str, RowOrder] | None:
        """Return the Hub's name of a tensor of GGUF, with the order of its rows; `{e}` stays in that of a stack.

        Rules: CNV-42.
        """
        for each in self.names:
            if match := _pattern(each.gguf).fullmatch(name):
                values = match.groupdict()
                new = each.hub.replace("{i}", str(values.get("i"))).replace("*", f".{values.get('s')}")
                return new, each.order
        return None


@lru_cache
def _pattern(template: str) -> re.Pattern[str]:
    text = re.escape(template).replace(r"\{i\}", r"(?P<i>0|[1-9]\d*)").replace(r"\{e\}", r"(?P<e>0|[1-9]\d*)")
    return re.compile(text.replace(r"\*", rf"\.(?P<s>{SUFFIXES})"))


OUTSIDE = (
    GgufName("model.embed_tokens*", "token_embd*"),
    GgufName("model.norm*", "output_norm*"),
    GgufName("lm_head*", "output*"),
)


def _layer(*names: tuple[str, str] | tuple[str, str, RowOrder]) -> tuple[GgufName, ...]:
    return tuple(GgufName(f"model.layers.{{i}}.{hub}", f"blk.{{i}}.{gguf}", *order) for hub, gguf, *order in names)


NORMS = _layer(("input_layernorm*", "attn_norm*"), ("post_attention_layernorm*", "ffn_norm*"))
VALUES = _layer(("self_attn.v_proj*", "attn_v*"), ("self_attn.o_proj*", "attn_output*"))
QUERIES = _layer(("self_attn.q_proj*", "attn_q*"), ("self_attn.k_proj*", "attn_k*"))
ROTATED = _layer(("self_attn.q_proj*", "attn_q*", RowOrder.QUERY), ("self_attn.k_proj*", "attn_k*", RowOrder.KEY))
QUERY_NORMS = _layer(("self_attn.q_norm*", "attn_q_norm*"), ("self_attn.k_norm*", "attn_k_norm*"))
DENSE = _layer(("mlp.gate_proj*", "ffn_gate*"), ("mlp.up_proj*", "ffn_up*"), ("mlp.down_proj*", "ffn_down*"))
EXPERTS = _layer(
    ("mlp.gate*", "ffn_gate_inp*"),
    ("mlp.experts.{e}.gate_proj*", "ffn_gate_exps*"),
    ("mlp.experts.{e}.up_proj*", "ffn_up_exps*"),
    ("mlp.experts.{e}.down_proj*", "ffn_down_exps*"),
)
MIXTRAL = _layer(
    ("block_sparse_moe.gate*", "ffn_gate_inp*"),
    ("block_sparse_moe.experts.{e}.w1*", "ffn_gate_exps*"),
    ("block_sparse_moe.experts.{e}.w3*", "ffn_up_exps*"),
    ("block_sparse_moe.experts.{e}.w2*", "ffn_down_exps*"),
)
GPT_OSS = _layer(
    ("input_layernorm*", "attn_norm*"),
    ("post_attention_layernorm*", "post_attention_norm*"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.router*", "ffn_gate_inp*"),
    ("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", RowOrder.EVEN),
    ("mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", RowOrder.ODD),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
    ("mlp.experts.gate_up_proj*", "ffn_gate_exps*", RowOrder.EVEN),
    ("mlp.experts.gate_up_proj*", "ffn_up_exps*", RowOrder.ODD),
    ("mlp.experts.down_proj*", "ffn_down_exps*"),
)
HEADS, HEADS_OF_KEYS, HEAD = "num_attention_heads", "num_key_value_heads", "head_dim"
NUMBERS = (
    GgufNumber("block_count", ("num_hidden_layers",)),
    GgufNumber("context_length", ("max_position_embeddings",)),
    GgufNumber("embedding_length", ("hidden_size",)),
    GgufNumber("feed_forward_length", ("intermediate_size",)),
    GgufNumber("attention.head_count", (HEADS,)),
    GgufNumber("attention.head_count_kv", (HEADS_OF_KEYS, HEADS)),
    GgufNumber("attention.key_length", (HEAD,)),
    GgufNumber("attention.value_length", (HEAD,)),
    GgufNumber("attention.layer_norm_rms_epsilon", ("rms_norm_eps",), "f"),
    GgufNumber("rope.freq_base", ("rope_theta",), "f"),
    GgufNumber("vocab_size", ("vocab_size",)),
)
ROTATION = (GgufNumber("rope.dimension_count", (HEAD,)),)
EXPERT_NUMBERS = (
    GgufNumber("expert_count", ("num_local_experts", "num_experts")),
    GgufNumber("expert_used_count", ("num_experts_per_tok",)),
)
EXPERT_WIDTH = (GgufNumber("expert_feed_forward_length", ("moe_intermediate_size",)),)
OSS_NUMBERS = (
    GgufNumber("expert_feed_forward_length", ("intermediate_size",)),
    GgufNumber("attention.sliding_window", ("sliding_window",)),
)
PLAIN = OUTSIDE + NORMS + VALUES
ARCHITECTURES = {
    each.model_type: each
    for each in (
        GgufArchitecture("llama", "llama", PLAIN + ROTATED + DENSE, NUMBERS + ROTATION),
        GgufArchitecture("llama", "mistral", PLAIN + ROTATED + DENSE, NUMBERS + ROTATION),
        GgufArchitecture("llama", "mixtral", PLAIN + ROTATED + MIXTRAL, NUMBERS + ROTATION + EXPERT_NUMBERS),
        GgufArchitecture("qwen2", "qwen2", PLAIN + QUERIES + DENSE, NUMBERS),
        GgufArchitecture("qwen3", "qwen3", PLAIN + QUERIES + QUERY_NORMS + DENSE, NUMBERS),
        GgufArchitecture(
            "qwen3moe",
            "qwen3_moe",
            PLAIN + QUERIES + QUERY_NORMS + EXPERTS,
            NUMBERS + EXPERT_NUMBERS + EXPERT_WIDTH,
        ),
        GgufArchitecture(
            "gpt-oss",
            "gpt_oss",
            OUTSIDE + VALUES + QUERIES + GPT_OSS,
            NUMBERS + EXPERT_NUMBERS + OSS_NUMBERS,
        ),
    )
}
ROPE_FACTORS = "rope_freqs.weight"
IN_FLOAT32 = ("_norm.weight", "ffn_gate_inp.weight", ".bias", "attn_sinks.weight", ".scale", ".input_scale")


def is_number(name: str) -> bool:
    """Return True for a scale of a tensor, which has no rows."""
    return name.endswith((".scale", ".input_scale"))


def row_axis(name: str) -> int:
    """Return the axis of a tensor's rows."""
    return -1 if name.endswith(".bias") else -2


def model_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config.json with those that writers leave out: the width of a head, the base of rotation."""
    rope = config.get("rope_parameters") or {}
    found = {"rope_theta": 10000.0, **(rope if isinstance(rope, dict) else {}), **config}
    heads, width = found.get(HEADS), found.get("hidden_size")
    if found.get(HEAD) is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        found[HEAD] = width // heads
    return found


def rope_scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a rotation that is scaled to a longer context; nothing if it is not."""
    for key in ("rope_scaling", "rope_parameters"):
        found = config.get(key)
        if isinstance(found, dict) and _rope_type(found) not in {"", "default"}:
            return {**found, "rope_type": _rope_type(found)}
    return {}


def _rope_type(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "")


SCALINGS = {  # by type: the key in GGUF, that of config.json, the form
    "linear": (("factor", "factor", "f"),),
    "yarn": (
        ("factor", "factor", "f"),
        ("original_context_length", "original_max_position_embeddings", "I"),
    ),
    "llama3": (),  # a tensor of factors
}


NEEDED = {  # what llama.cpp computes whatever a config.json says: model type, key, value, the value of an absent key
    "qwen3_moe": (("norm_topk_prob", True, False),),
}
ACTIVATIONS = ("silu", "swish")


def why_not(config: Mapping[str, Any] | None) -> str:
    """Return why a model has no names in GGUF here; "" if it has. Rules: CNV-40."""
    return next(_obstacles(config or {}), "") if config is not None else "there is no config.json"


def _obstacles(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what llama.cpp cannot be told of a model, or would compute otherwise."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        yield f"no map is known for model_type {kind!r}, only for {', '.join(ARCHITECTURES)}"
        return
    numbers = model_numbers(config)
    for each in ARCHITECTURES[kind].numbers:
        value = next((numbers[key] for key in each.config if numbers.get(key) is not None), None)
        kinds = (int, float) if each.form == "f" else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < 1 << 32:
            yield f"config.json has no usable {each.config[0]}"
    for key, need, usual in NEEDED.get(kind, ()):
        if config.get(key, usual) != need:
            yield f"{key} is {config.get(key, usual)}, and llama.cpp computes as if it were {need}"
    if config.get("hidden_act", "silu") not in ACTIVATIONS:
        yield f"hidden_act is {config['hidden_act']!r}, and llama.cpp computes silu"
    scaling = rope_scaling(config)
    if scaling and scaling["rope_type"] not in SCALINGS:
        yield f"no form is known for rope_type {scaling['rope_type']!r}, only for {', '.join(SCALINGS)}"
    for own in (own for _, own, _ in SCALINGS.get(scaling.get("rope_type", ""), ())):
        if not isinstance(scaling.get(own), (int, float)) or not 0 < scaling[own] < 1 << 32:
            yield f"config.json has no usable {own} of its rotation"
