"""DotProductAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.attention import formats, masks
from fp4ref.te.attention.backends import _attention_backends  # noqa: F401 - scripts write it
from fp4ref.te.attention.core import attend, largest_scores
from fp4ref.te.checkpoint import checkpoint
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.helpers import check_set_window_size
from fp4ref.te.module.base import TransformerEngineBaseModule
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.device import default_device
from fp4ref.te.module.options import divide, require_only_supported

SOFTMAX = ("vanilla", "off-by-one", "learnable")


class DotProductAttention(TransformerEngineBaseModule):
    """softmax(scale q k^T) v of heads side by side, in high precision inside `autocast` as well.

    kv_channels: the size of a head, or of its keys and of its values. num_gqa_groups: how many heads have keys of
    their own. softmax_type: "off-by-one" adds a score of 0 without a value, "learnable" one that is a parameter.
    return_max_logit: also return the largest score of each head. Heads are split over the group. Context parallelism
    is refused by name.

    Errors: SettingError, NotSupportedError, TensorShapeError.

    Rules: TEM-4, TEM-31.
    """

    softmax_offset: Tensor | None

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: list[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        if attention_type not in {"self", "cross"}:
            raise SettingError("DotProductAttention", f"attention_type {attention_type!r}", "self or cross")
        if softmax_type not in SOFTMAX:
            raise SettingError("DotProductAttention", f"softmax_type {softmax_type!r}", ", ".join(SOFTMAX))
        self.tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        self.set_tensor_parallel_group(tp_group)
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        divide("DotProductAttention", "num_attention_heads", num_attention_heads, self.num_gqa_groups)
        self.num_gqa_groups_per_partition = divide(
            "DotProductAttention", "num_gqa_groups", self.num_gqa_groups, self.tp_size
        )
        channels = (kv_channels, kv_channels) if isinstance(kv_channels, int) else kv_channels
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = channels
        self.softmax_scale = 1.0 / math.sqrt(channels[0]) if softmax_scale is None else softmax_scale
        self.qkv_format, self.attention_type = formats.require_format(qkv_format), attention_type
        self.attn_mask_type = masks.canonical(attn_mask_type)
        self.window_size = check_set_window_size(self.attn_mask_type, window_size)
        self.bottom_right_diagonal = bottom_right_diagonal
        self.attention_dropout, self.layer_number = attention_dropout, layer_number or 1
        self.softmax_type, self.return_max_logit = softmax_type, return_max_logit
        self.get_rng_state_tracker = None if sequence_parallel else get_rng_state_tracker
        offset = torch.zeros(num_attention_heads // self.tp_size, device=default_device(None))
        if softmax_type == "learnable":
            self.register_parameter("softmax_offset", torch.nn.Parameter(offset))
        else:
            self.softmax_offset = None if softmax_type == "vanilla" else offset
        self.register_load_state_dict_post_hook(_forgive_missing_state)  # type: ignore[no-untyped-call]

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any = None, cp_stream: Any = None, cp_comm_type: str = "p2p"
    ) -> None:
        """Accept no group, or one of one process; NotSupportedError otherwise."""
        if cp_group is not None and get_distributed_world_size(cp_group) > 1:
            require_only_supported("DotProductAttention", cp_group=cp_group)

    @not_compiled
    def forward(
        self,
        query_layer: Tensor | None = None,
        key_layer: Tensor | None = None,
        value_layer: Tensor | None = None,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: Any = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool = False,
        bf16_backward: bool = False,
        num_splits: int | None = 1,
        score_mod: Any = None,
        score_mod_bprop: Any = None,
        score_mod_tensors: Any = None,
        score_mod_bprop_tensors: Any = None,
        qkv_layer: Tensor | None = None,
        kv_layer: Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> Any:
        """Attend from queries to keys and values, [s, b, h, d], [b, s, h, d] or [t, h, d]: the heads side by side.

        qkv_layer, kv_layer: all three in one tensor, or keys and values, with one more axis at qkv_interleave_dim.
        core_attention_bias_type "alibi" lowers a score by a slope times the distance from the diagonal; alibi_slopes:
        float32 [h] or [b, h], or those of the method.
        attention_mask: True for what is hidden: padded places [b, 1, 1, s], of queries and of keys where they differ;
        or, for the kind "arbitrary", [b, h, i, j] or what broadcasts to it. cu_seqlens_*: the summed lengths of the
        sequences, `..._padded` where they begin. fast_zero_fill, num_splits, pad_between_seqs only advise kernels.

        Errors: SettingError, NotSupportedError, TensorShapeError.
        """
        require_only_supported(
            "DotProductAttention.forward",
            inference_params=inference_params,
            fp8_output=fp8_output,
            bf16_backward=bf16_backward,
            score_mod=score_mod,
            score_mod_bprop=score_mod_bprop,
            score_mod_tensors=score_mod_tensors,
            score_mod_bprop_tensors=score_mod_bprop_tensors,
        )
        given = query_layer, key_layer, value_layer
        query_layer, key_layer, value_layer = formats.operands(given, qkv_layer, kv_layer, qkv_interleave_dim)
        qkv_format = self.qkv_format if qkv_format is None else formats.require_format(qkv_format)
        mask_type = self.attn_mask_type if attn_mask_type is None else masks.canonical(attn_mask_type)
        window = check_set_window_size(mask_type, self.window_size if window_size is None else window_size)
        heads = self.num_attention_heads // self.tp_size, self.num_gqa_groups_per_partition
        if (query_layer.shape[-2], key_layer.shape[-2]) != heads:
            got = f"{query_layer.shape[-2]} heads of queries and {key_layer.shape[-2]} of keys"
            raise TensorShapeError("DotProductAttention", got, f"{heads[0]} and {heads[1]}")
        packed = None
        if qkv_format == "thd":
            if cu_seqlens_q is None or "padding" not in mask_type:
                got = f"the format thd with mask {mask_type!r} and cu_seqlens_q {cu_seqlens_q}"
                raise SettingError("DotProductAttention", got, "a padding mask and cu_seqlens_q")
            of_keys = cu_seqlens_q if cu_seqlens_kv is None else cu_seqlens_kv
            packed = formats.Packed.of(query_layer.shape[0], cu_seqlens_q, cu_seqlens_q_padded, max_seqlen_q)
            keys = formats.Packed.of(key_layer.shape[0], of_keys, cu_seqlens_kv_padded, max_seqlen_kv)
            q, k, v = packed.unpack(query_layer), keys.unpack(key_layer), keys.unpack(value_layer)
            padded: Any = packed.padded, keys.padded
        else:
            q, k, v = (formats.heads_first(x, qkv_format) for x in (query_layer, key_layer, value_layer))
            padded = _padded(mask_type, attention_mask, cu_seqlens_q, cu_seqlens_kv, q.shape[2], k.shape[2])
        bottom_right = self._bottom_right(mask_type, bottom_right_diagonal)
        hidden = masks.hidden(
            mask_type,
            q.shape[2],
            k.shape[2],
            window=window,
            bottom_right=bottom_right,
            padded=padded,
            given=attention_mask if isinstance(attention_mask, Tensor) else None,
            device=q.device,
        )
        if core_attention_bias_type == "alibi":
            slopes = masks.slopes(heads[0], q.device) if alibi_slopes is None else alibi_slopes
            shift = masks.shift(q.shape[2], k.shape[2], padded) if bottom_right else 0
            bias: Tensor | None = masks.distances(slopes, q.shape[2], k.shape[2], shift)
        else:
            require_only_supported("DotProductAttention.forward without alibi", alibi_slopes=alibi_slopes)
            bias = _scaled_bias(core_attention_bias_type, core_attention_bias, self.softmax_scale)
        run = checkpoint if checkpoint_core_attention else _directly
        y = run(self._attend, q, k, v, hidden, bias)
        result = packed.pack(y).flatten(-2) if packed is not None else formats.heads_last(y, qkv_format)
        if not self.return_max_logit:
            return result
        return result, largest_scores(q, k, scale=self.softmax_scale, hidden=hidden, bias=bias)

    def _bottom_right(self, mask_type: str, choice: bool | None) -> bool:
        """Return True if the diagonal ends at the last query and key."""
        if "causal" in mask_type:
            return mask_type.endswith("bottom_right")
        choice = self.bottom_right_diagonal if choice is None else choice
        return True if choice is None else choice

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, bias: Tensor | None) -> Tensor:
        dropout = self.attention_dropout if self.training else 0.0
        tracker = self.get_rng_state_tracker
        with tracker().fork() if dropout and tracker is not None else nullcontext():
            return attend(
                q,
                k,
                v,
                scale=self.softmax_scale,
                hidden=hidden,
                bias=bias,
                sink=self.softmax_offset,
                dropout=dropout,
            )


def _directly(function: Callable[..., Tensor], *args: Any) -> Tensor:
    return function(*args)


def _padded(
    mask_type: str, given: Any, of_queries: Tensor | None, of_keys: Tensor | None, queries: int, keys: int
) -> tuple[Tensor, Tensor] | None:
    """Return the padded places of queries and keys, from the mask or from the summed lengths."""
    if "padding" not in mask_type:
        return None
    if given is not None:
        both = given if isinstance(given, (tuple, list)) else (given, given)
        return both[0].reshape(both[0].shape[0], -1), both[1].reshape(both[1].shape[0], -1)
    if of_queries is None:
        raise SettingError("DotProductAttention", f"mask {mask_type!r} alone", "attention_mask or cu_seqlens_q")
    return masks.from_lengths(of_queries, queries), masks.from_lengths(of_queries if of_keys is None else of_keys, keys)


def _scaled_bias(kind: str, bias: Tensor | None, scale: float) -> Tensor | None:
    """Return the bias of the scores, times the scale if it is added before scaling; None without one."""
    if kind not in {"no_bias", "post_scale_bias", "pre_scale_bias"}:
        require_only_supported("DotProductAttention.forward", core_attention_bias_type=kind)
    if kind == "no_bias" or bias is None:
        return None
    return bias * scale if kind == "pre_scale_bias" else bias


def _forgive_missing_state(module: Any, incompatible: Any) -> None:
    """Let checkpoints load that were written without this module's record."""
    keys = [key for key in incompatible.missing_keys if "core_attention._extra_state" in key]
    for key in keys:
        incompatible.missing_keys.remove(key)
