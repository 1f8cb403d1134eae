"""MultiheadAttention: projections to queries, keys and values, attention, and a projection of the heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.attention.dot_product_attention import DotProductAttention
from fp4ref.te.attention.rope import apply_rotary_pos_emb
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.errors import SettingError
from fp4ref.te.helpers import get_default_init_method
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.layernorm_linear import LayerNormLinear
from fp4ref.te.module.linear import Linear
from fp4ref.te.module.norm_modules import LayerNorm, RMSNorm
from fp4ref.te.module.options import divide
from fp4ref.te.ops.norms import L2NormalizationOperation

Rotary = Tensor | tuple[Tensor, Tensor] | None


class MultiheadAttention(torch.nn.Module):
    """Attention of a layer's states to themselves or, with attention_type "cross", to an encoder's output.

    Submodules: layernorm_qkv or qkv (cross: layernorm_query or query_layer, and key_value), core_attention, proj, and
    q_norm, k_norm with a qk_norm_type ("L2Normalization", "RMSNorm", "LayerNorm"). fuse_qkv_params: one weight instead
    of query, key and value; qkv_weight_interleaved: its rows are sorted by groups of heads. input_layernorm: normalize
    the states first. set_parallel_mode: split the heads over the group.

    Errors: SettingError, NotSupportedError, TensorShapeError.

    Rules: TEM-30, TEM-31.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: torch.device | str | None = None,
        qkv_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        if attention_type not in {"self", "cross"}:
            raise SettingError("MultiheadAttention", f"attention_type {attention_type!r}", "self or cross")
        tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        divide("MultiheadAttention", "num_attention_heads", num_attention_heads, groups)
        self.name, self.attention_type, self.qkv_format = name, attention_type, qkv_format
        self.attn_mask_type, self.window_size = attn_mask_type, window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.input_layernorm, self.return_bias = input_layernorm, return_bias
        self.return_layernorm_output = return_layernorm_output
        self.hidden_size_per_attention_head = size = kv_channels or hidden_size // num_attention_heads
        self.heads_per_group = num_attention_heads // groups
        self.num_gqa_groups_per_partition = divide("MultiheadAttention", "num_gqa_groups", groups, tp_size)
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.rotary_pos_interleaved, self.qk_norm_before_rope = rotary_pos_interleaved, qk_norm_before_rope
        init = init_method or get_default_init_method()
        shared: dict[str, Any] = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": sequence_parallel,
            "params_dtype": params_dtype,
            "device": device,
            "bias": bias,
            "ub_overlap_ag": ub_overlap_ag,
        }
        overlap: dict[str, Any] = {
            "ub_bulk_wgrad": ub_bulk_wgrad,
            "ub_bulk_dgrad": ub_bulk_dgrad,
            "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad,
        }
        norm: dict[str, Any] = {
            "eps": layernorm_epsilon,
            "normalization": normalization,
            "zero_centered_gamma": zero_centered_gamma,
            "return_layernorm_output": return_layernorm_output,
        }

        def projection(kind: str, parts: dict[str, int], *, normed: bool = False) -> Any:
            split = parts if len(parts) > 1 or normed else None
            options: dict[str, Any] = {
                "init_method": init,
                "parallel_mode": "column" if set_parallel_mode else None,
                "parameters_split": None if fuse_qkv_params else split,
                "name": None if name is None else f"{name}.{'layernorm_' if normed else ''}linear_{kind}",
            }
            if normed:
                return LayerNormLinear(hidden_size, sum(parts.values()), **options, **norm, **overlap, **shared)
            return Linear(hidden_size, sum(parts.values()), **options, **shared)

        self.q_norm, self.k_norm = _norms(qk_norm_type, size, qk_norm_eps, device, params_dtype)
        of_queries, of_keys = size * num_attention_heads, size * groups
        queries, others = {"query": of_queries}, {"key": of_keys, "value": of_keys}
        if attention_type == "self" and input_layernorm:
            self.layernorm_qkv = projection("qkv", queries | others, normed=True)
        elif attention_type == "self":
            self.qkv = projection("qkv", queries | others)
        else:
            if input_layernorm:
                self.layernorm_query = projection("q", queries, normed=True)
            else:
                self.query_layer = projection("q", queries)
            self.key_value = projection("kv", others)
        self.core_attention = DotProductAttention(
            num_attention_heads,
            size,
            num_gqa_groups=groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            tp_size=tp_size,
            get_rng_state_tracker=get_rng_state_tracker,
            sequence_parallel=sequence_parallel,
            tp_group=tp_group,
            layer_number=layer_number,
            attention_type=attention_type,
            softmax_type=softmax_type,
            name=None if name is None else f"{name}.core_attention",
        )
        self.proj = Linear(
            of_queries,
            hidden_size,
            init_method=output_layer_init_method or get_default_init_method(),
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            ub_overlap_rs=ub_overlap_rs,
            name=None if name is None else f"{name}.proj",
            **shared,
        )

    @not_compiled
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        encoder_output: Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: Any = None,
        rotary_pos_emb: Rotary = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Attend from states [..., hidden]: [..., hidden]; then the bias, then the norm's output, where asked for.

        rotary_pos_emb: angles of `RotaryPositionEmbedding`, of queries and of keys if they differ. Other arguments are
        those of `DotProductAttention`.

        Errors: SettingError, NotSupportedError, TensorShapeError, TensorDTypeError.
        """
        normed = None
        if self.attention_type == "self":
            first = self.layernorm_qkv if self.input_layernorm else self.qkv
            mixed, normed = self._project(first, hidden_states, is_first_microbatch)
            q, k, v = self._split(mixed, [self.heads_per_group, 1, 1])
        else:
            mixed = self.key_value(encoder_output, is_first_microbatch=is_first_microbatch)
            k, v = self._split(mixed, [1, 1])
            first = self.layernorm_query if self.input_layernorm else self.query_layer
            mixed, normed = self._project(first, hidden_states, is_first_microbatch)
            q = mixed.view(*mixed.shape[:-1], -1, self.hidden_size_per_attention_head)
        if self.qk_norm_before_rope:
            q, k = self._normalized(q, k)
        if rotary_pos_emb is not None:
            angles = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb, rotary_pos_emb)
            q, k = (
                apply_rotary_pos_emb(
                    x, freqs, self.qkv_format, fused=True, interleaved=self.rotary_pos_interleaved, cu_seqlens=lengths
                )
                for x, freqs, lengths in zip((q, k), angles, (cu_seqlens_q, cu_seqlens_kv), strict=True)
            )
        if not self.qk_norm_before_rope:
            q, k = self._normalized(q, k)
        context = self.core_attention(
            q,
            k,
            v,
            attention_mask=attention_mask,
            attn_mask_type=self.attn_mask_type if attn_mask_type is None else attn_mask_type,
            window_size=self.window_size if window_size is None else window_size,
            bottom_right_diagonal=self.bottom_right_diagonal
            if bottom_right_diagonal is None
            else bottom_right_diagonal,
            checkpoint_core_attention=checkpoint_core_attention,
            inference_params=inference_params,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_kv=cu_seqlens_kv,
            **options,
        )
        projected = self.proj(context, is_first_microbatch=is_first_microbatch)
        results = [*projected] if self.return_bias else [projected]
        if self.input_layernorm and self.return_layernorm_output:
            results.append(normed)
        return results[0] if len(results) == 1 else tuple(results)

    def _project(self, layer: Any, x: Tensor, is_first_microbatch: bool | None) -> tuple[Tensor, Tensor | None]:
        made = layer(x, is_first_microbatch=is_first_microbatch)
        return made if isinstance(made, tuple) else (made, None)

    def _split(self, mixed: Tensor, heads: list[int]) -> tuple[Tensor, ...]:
        """Return the parts of a projection, [..., heads, size] each; heads: how many each part has per group."""
        groups, size = self.num_gqa_groups_per_partition, self.hidden_size_per_attention_head
        if self.qkv_weight_interleaved:
            parts = torch.split(mixed.view(*mixed.shape[:-1], groups, sum(heads), size), heads, -2)
        else:
            parts = torch.split(mixed.view(*mixed.shape[:-1], sum(heads), groups, size), heads, -3)
        return tuple(part.flatten(-3, -2) for part in parts)

    def _normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)


def _norms(kind: str | None, size: int, eps: float, device: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the norms of queries and of keys."""
    if kind is None:
        return None, None
    if kind == "L2Normalization":
        shared = L2NormalizationOperation(eps=eps)
        return shared, shared
    made = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}.get(kind)
    if made is None:
        raise SettingError("MultiheadAttention", f"qk_norm_type {kind!r}", "L2Normalization, RMSNorm or LayerNorm")
    queries, keys = (made(size, eps=eps, device=device, params_dtype=dtype) for _ in range(2))
    return queries, keys
